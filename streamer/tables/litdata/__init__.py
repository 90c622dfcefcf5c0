"""The format "litdata" reads chunks that LitData has written.

`formats/registry.py` makes it for engine, recoders and workers, and `tables/foreign.py` decodes its fields in workers.
"""
