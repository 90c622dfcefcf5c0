"""The demonstration of engines whose caches act as one: `streamer demo --peers`."""
