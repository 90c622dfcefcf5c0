"""Parts for formats of tables: records of rows, columns from Arrow's arrays, partitions in paths, logs of tables.

The formats of `tables/`, the readers of `media/` and `annotations/` use them.
"""
