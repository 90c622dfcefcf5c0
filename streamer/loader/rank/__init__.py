"""Prepares and runs the stream of one rank: its order, its agreement with the other ranks, its sessions and states.

Used by `loader/epoch_dataset.py`, `loader/dataloader.py`, `loader/epoch.py` and `loader/feed/`.
"""
