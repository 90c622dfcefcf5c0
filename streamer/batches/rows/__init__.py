"""Packs documents into rows of one length: plans the rows before documents are read, and makes them in the workers.

`batches/samples` plans rows when it opens a dataset with `packing=`, and makes them; the loader checks the options.
Nothing here imports torch at its start.

options.py     how documents are packed, as the user says it
balance.py     how batches are made level, as the user says it
costs.py       the tokens of each document: from the format, measured, or estimated
table.py       how many rows each set of chunks has: made once, on all cores, and kept in a file
order_rows.py  what an order counts: samples, or rows
planned.py     which documents are in which row
pieces.py      the documents of some rows, and their counts
assemble.py    made documents to the arrays of rows
bucket.py      made documents to buckets
collate.py     rows to a batch
explain.py     what rows will be like, in words
"""
