"""Parquet, read by row groups and by runs of pages."""
