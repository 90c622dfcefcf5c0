"""Manifests: the objects, chunks and samples of a dataset in files, written once and memory-mapped from then on.

`indexing/` writes manifests; formats, `engine/`, `batches/`, `loader/` and the commands read them (`table.py`). This
file imports nothing, so that trainers, which only read manifests, load no module that writes.
"""
