"""Which engine of several keeps a chunk: members, rendezvous hashing, homes. Pure: numpy only, no I/O."""
