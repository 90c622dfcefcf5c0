"""Which engine of several keeps a chunk: members, rendezvous hashing, homes. Pure: numpy only, no I/O."""

# How homes are computed; engines with different numbers are no peers.
PLACEMENT = 1
