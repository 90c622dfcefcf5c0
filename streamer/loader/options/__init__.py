"""Holds the arguments of datasets, mixes and loaders, and checks them.

Used by `loader/`; some also by `cli/` and `tools/`. `streamer` exports `Order`, `Index` and `Skip`.
"""
