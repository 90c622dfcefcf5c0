"""Parquet, read by row groups and by pages."""

from streamer.formats.parquet.format import Parquet

__all__ = ["Parquet"]
