"""Arrow's own files: record batches one after the other."""
