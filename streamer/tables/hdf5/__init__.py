"""The format "hdf5": a parser that reads by ranges finds where the rows of datasets are.

`formats/registry.py` makes it for engine, recoders and workers. Rows of chunks become samples by `tables/tiles.py`, as
those of zarr.
"""
