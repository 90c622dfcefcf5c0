"""The arguments of datasets, mixes and loaders, and their checks."""
