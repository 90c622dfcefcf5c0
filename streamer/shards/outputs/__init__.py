"""The outputs of a shard: `writer` chooses among `tars`, `tokens` and `parquet`, whose `columns` samples decide."""
