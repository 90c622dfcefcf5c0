"""Opens one dataset of a stream: its manifest, its selected samples, its columns and its joins.

Used by `loader/dataset.py`, `loader/kinds/` and `loader/rank/`, by the scans of packs (`loader/dataset_scan.py`), and
by the commands of `cli/` and `tools/`.
"""
