"""Gives formats of tables what they share: records of rows, columns of Arrow's arrays, partitions in paths, and logs.

The formats of `tables/` and `media/`, `annotations/`, `decode/`, `formats/windows.py` and `loader/members/columns.py`
use them. `formats/detect.py` and `engine/manifests/table_logs.py` look for logs of tables.
"""
