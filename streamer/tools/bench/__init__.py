"""The loader against emulated accelerators: the work of `streamer bench --like`."""
