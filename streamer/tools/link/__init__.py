"""Measures a link and reports it: the work of `streamer bench`."""
