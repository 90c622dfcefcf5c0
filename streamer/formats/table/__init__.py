"""Gives formats of tables what they share: records of rows, columns of Arrow's arrays, partitions in paths, and logs.

The formats of `tables/`, the readers of `media/` and `annotations/` use them.
"""
