"""Formats of tables, records, tokens and arrays: one file, or one package, for each.

`formats/registry.py` imports a format when a dataset of it is first used. `media/lerobot` reads its tables with
`tables/parquet`.
"""
