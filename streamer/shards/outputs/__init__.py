"""What a shard is written as: `writer` chooses between `tars` and `parquet`, whose `columns` follow from samples."""
