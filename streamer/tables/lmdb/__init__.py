"""LMDB: key-value databases, read by ranges."""
