"""Formats: finds the samples, and the fields of one. No I/O.

    StreamingDataset(url, format=TFRecord(features={"label": "int"}))

The classes with options are here; each is imported when it is first used. `docs/formats.md` explains them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamer.formats.arrays.hdf5.format import HDF5 as HDF5
    from streamer.formats.arrays.rows import Npy as Npy
    from streamer.formats.arrays.rows import RawArrays as RawArrays
    from streamer.formats.arrays.zarr.format import Zarr as Zarr
    from streamer.formats.base import Format as Format
    from streamer.formats.folder import Folder as Folder
    from streamer.formats.json_lines import JsonLines as JsonLines
    from streamer.formats.parquet.format import Parquet as Parquet
    from streamer.formats.peers.litdata import LitData as LitData
    from streamer.formats.peers.mds import Mds as Mds
    from streamer.formats.recordio import RecordIO as RecordIO
    from streamer.formats.tfrecord.format import TFRecord as TFRecord
    from streamer.formats.webdataset import WebDataset as WebDataset

_HOMES = {
    "Folder": "folder",
    "Format": "base",
    "HDF5": "arrays.hdf5.format",
    "JsonLines": "json_lines",
    "LitData": "peers.litdata",
    "Mds": "peers.mds",
    "Npy": "arrays.rows",
    "Parquet": "parquet.format",
    "RawArrays": "arrays.rows",
    "RecordIO": "recordio",
    "TFRecord": "tfrecord.format",
    "WebDataset": "webdataset",
    "Zarr": "arrays.zarr.format",
}

__all__ = [
    "Folder",
    "Format",
    "HDF5",
    "JsonLines",
    "LitData",
    "Mds",
    "Npy",
    "Parquet",
    "RawArrays",
    "RecordIO",
    "TFRecord",
    "WebDataset",
    "Zarr",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'streamer.formats' has no attribute {name!r}")
    return getattr(import_module(f"streamer.formats.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
