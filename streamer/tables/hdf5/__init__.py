"""HDF5: where the rows of its datasets are, found by a parser that reads by ranges."""
