"""Implements the commands of packs, `streamer pack` and `streamer verify`; `cli/main.py` runs them."""
