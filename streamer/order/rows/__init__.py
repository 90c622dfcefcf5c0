"""Packs documents into rows of one length, before a sample is read. Pure functions of costs, seed and epoch.

Used by `batches/rows/`, which makes the rows, and by specs (`order/spec.py`). A set has some chunks, whose documents
share rows. The cost of a document is its number of tokens.

spec.py     what fixes the rows, as a state keeps it
sets.py     the chunks whose documents share rows
items.py    documents to items, and items to rows: best fit, one after the other, or buckets of like length
content.py  the rows of a set in an epoch; the number of rows of each set
"""
