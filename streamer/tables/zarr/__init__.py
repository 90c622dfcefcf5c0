"""The format "zarr", of versions 2 and 3: rows are found by metadata, names of objects and indexes of shards.

`formats/registry.py` makes it for engine, recoders and workers. Rows of arrays become samples by `tables/tiles.py`, as
those of HDF5.
"""
