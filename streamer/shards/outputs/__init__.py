"""What a shard is written as: `writer` chooses among `tars`, `tokens` and `parquet`, whose `columns` samples decide."""
