"""Delivers samples to a training loop: datasets, mixes, and the loader with its epochs, feeder and stall reports.

Users import its classes from `streamer`; `shards/`, `cli/` and `tools/` use its datasets and options.
"""
