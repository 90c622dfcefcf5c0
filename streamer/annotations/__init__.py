"""Joins labels, boxes and texts from a file beside the data to samples by key.

options.py  the user's options, and those of a parser
parse.py    makes the columns of a table of a file of annotations, in a recoder: CSV, JSON lines, Parquet
coco.py     parses COCO's JSON for parse.py
table.py    the rows by key, in files that all processes of a machine map
join.py     finds the samples that have a row, and the fields of a sample's row

Used by `recode/` and `engine/`, which make and keep the tables, and by `loader/`, `batches/samples/`, `shards/` and
`streamer show`, which join their rows.
"""
