"""Files of a manifest, and those beside it, as Arrow IPC streams: a writer, and a reader of views over a mapping.

Used by `manifest/`, `indexing/publish.py`, `annotations/table.py` and `batches/rows/table.py`.
"""
