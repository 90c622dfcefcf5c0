"""The format "hdf5": a parser that reads by ranges finds where the rows of datasets are.

`formats/registry.py` makes it for engine, recoders and workers. Here a dataset is an array in an HDF5 file. Its rows
become samples by `tables/tiles.py`, as those of zarr.
"""
