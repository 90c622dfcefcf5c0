"""Rows: documents joined to one length, planned before a sample is read. Pure functions of costs, seed and epoch.

spec.py      what fixes the rows, as a state keeps it
sets.py      the chunks whose documents share rows
items.py     documents to items: whole documents, or pieces of long ones
best_fit.py  items to rows, none of them cut
concat.py    documents to rows, one after the other
buckets.py   documents of like length to batches
content.py   the rows of a set in an epoch; the number of rows of each set
"""
