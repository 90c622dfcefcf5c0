"""Emulated accelerators: how many of them a store and this machine can feed."""
