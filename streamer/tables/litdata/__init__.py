"""The format "litdata": chunks that LitData's `optimize` has written.

`formats/registry.py` makes it, and `tables/foreign.py` decodes its fields in workers.
"""
