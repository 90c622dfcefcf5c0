"""The format "parquet": rows are samples, fetched by row groups or by runs of pages.

`formats/registry.py` makes it for engine, recoders and workers. `tables/arrow_ipc` uses its trees of columns and its
way to make records, and `media/lerobot` reads its tables with it.
"""
