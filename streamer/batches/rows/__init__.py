"""Rows: documents joined to one length, planned before they are read, made by the workers. Imports no torch.

options.py    how rows are made, as the user says it
costs.py      the tokens of each document: from the format, measured, or estimated
table.py      how many rows each set has: made once, on all cores, and kept in a file
pieces.py     the documents of some rows, and their counts
planned.py    which documents are in which row: the sets that are open
assemble.py   made documents to the arrays of rows
bucket.py     made documents to buckets
collate.py    rows to a batch
explain.py    what rows will be like, in words
"""
