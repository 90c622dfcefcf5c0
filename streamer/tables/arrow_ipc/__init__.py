"""The format "arrow" reads Arrow's own streams and files, which are record batches one after the other.

`formats/registry.py` makes it for engine, recoders and workers. `tables/litdata` reads the record batches and the
footer of its Arrow chunks with it.
"""
