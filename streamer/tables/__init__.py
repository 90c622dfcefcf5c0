"""Reads formats of tables, records, tokens and arrays. Each has a file or a package here.

`formats/registry.py` imports a format when a dataset of it is first used. `media/lerobot` reads its tables with
`tables/parquet`.
"""
