"""The outputs of a pack, by name in `registry`: `tars`, `tokens`, and `parquet`, whose `columns` follow."""
