"""Writes the files of shards: tars (`tars.py`), tokens (`tokens.py`) or Parquet (`parquet.py`, `columns.py`).

The modules of `shards/` find an output by its name in `registry.py`, and use it by the interface in `base.py`.
"""
