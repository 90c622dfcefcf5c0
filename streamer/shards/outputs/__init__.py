"""The outputs of a pack, by name in `registry`: `tars`, `tokens`, and `rows` of Parquet, whose `columns` follow."""
