"""Zarr of versions 2 and 3: rows of its arrays, found by metadata, names of objects and indexes of shards."""
