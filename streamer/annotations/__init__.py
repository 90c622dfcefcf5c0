"""Labels, boxes and texts from a file beside the data, joined to samples by key.

options.py  the user's options, and those of a parser
parse.py    a file to the columns of a table, in a recoder: CSV, JSON lines, Parquet; coco.py
table.py    the rows by key, in files that all processes of a machine map
join.py     the samples of a dataset that have a row, and the fields of a sample's row
"""
