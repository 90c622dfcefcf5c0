"""Decides which engine of several keeps a chunk: members, rendezvous hashing, homes. Pure: numpy only, no I/O."""

# How homes are computed; engines with different numbers cannot be peers.
PLACEMENT = 1
