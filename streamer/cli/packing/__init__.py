"""The commands `streamer pack` and `streamer verify`, for `cli/main.py`; they run the packing of `shards/`."""
