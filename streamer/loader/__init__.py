"""Delivers samples to a training loop: datasets, mixes, and the loader with its epochs, feeder and stall reports.

Users import its classes from `streamer`; `cli/` and `tools/` use them, too. A pack (`shards/`) reads by the scan of a
dataset (`loader/dataset_scan.py`).
"""
