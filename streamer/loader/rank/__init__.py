"""Prepares and runs the stream of one rank: its order, its agreement with the other ranks, its sessions and states.

Used by the datasets, mixes and loaders of `loader/` (`epoch_dataset.py`, `dataloader.py`, `epoch.py`) and by
`loader/feed/`.
"""
