"""`streamer pack` and `streamer verify`."""
