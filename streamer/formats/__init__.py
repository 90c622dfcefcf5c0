"""Formats find the samples of objects, and the fields of a sample. No I/O.

    StreamingDataset(url, format=TFRecord(features={"label": "int"}))

`BUILT_IN` is the table of this package's formats. From it follow the names that users write, the classes with options
that are imported from here, and the names of files by which `format="auto"` recognizes a format. A class is imported
when it is first used. `docs/formats.md` explains them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from streamer.formats.arrays.hdf5.format import HDF5 as HDF5
    from streamer.formats.arrays.rows import Npy as Npy
    from streamer.formats.arrays.rows import RawArrays as RawArrays
    from streamer.formats.arrays.zarr.format import Zarr as Zarr
    from streamer.formats.arrow_ipc.format import ArrowIPC as ArrowIPC
    from streamer.formats.audio.format import Audio as Audio
    from streamer.formats.base import Format as Format
    from streamer.formats.folder import Folder as Folder
    from streamer.formats.json_lines import JsonLines as JsonLines
    from streamer.formats.lerobot.format import LeRobot as LeRobot
    from streamer.formats.litdata.format import LitData as LitData
    from streamer.formats.lmdb.format import LMDB as LMDB
    from streamer.formats.mds import Mds as Mds
    from streamer.formats.parquet.format import Parquet as Parquet
    from streamer.formats.recordio import RecordIO as RecordIO
    from streamer.formats.tfrecord.format import TFRecord as TFRecord
    from streamer.formats.tokens.format import Tokens as Tokens
    from streamer.formats.video.format import Video as Video
    from streamer.formats.webdataset import WebDataset as WebDataset
    from streamer.formats.zip import Zip as Zip

AUTO = "auto"


class BuiltIn(NamedTuple):
    """A format of this package.

    Attributes:
        module: module of its class, below `streamer.formats`.
        class_name: name of its class.
        title: its name in messages; "" if it is never found by the names of files.
        endings: endings of its files, in lower case: most files of a dataset have one of them.
        files: names of which one is enough, because its other files have names that say nothing.
    """

    module: str
    class_name: str
    title: str = ""
    endings: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Place of the class, as an entry point names it."""
        return f"streamer.formats.{self.module}:{self.class_name}"


BUILT_IN = {
    "arrow": BuiltIn("arrow_ipc.format", "ArrowIPC", "Arrow", ("arrow", "feather", "ipc")),
    "audio": BuiltIn("audio.format", "Audio"),
    "folder": BuiltIn("folder", "Folder"),
    "webdataset": BuiltIn("webdataset", "WebDataset"),
    "mds": BuiltIn("mds", "Mds", "MDS (MosaicML Streaming)", ("mds",)),
    "litdata": BuiltIn("litdata.format", "LitData", "LitData"),
    # Its files are Parquet and mp4.
    "lerobot": BuiltIn("lerobot.format", "LeRobot"),
    "lmdb": BuiltIn("lmdb.format", "LMDB", "LMDB", ("lmdb", "mdb"), files=("data.mdb",)),
    "tfrecord": BuiltIn("tfrecord.format", "TFRecord", "TFRecord", ("tfrecord", "tfrecords", "tfrec")),
    "recordio": BuiltIn("recordio", "RecordIO", "RecordIO (MXNet)", ("rec",)),
    "jsonl": BuiltIn("json_lines", "JsonLines", "JSON lines", ("jsonl", "ndjson", "jsonlines")),
    "npy": BuiltIn("arrays.rows", "Npy"),
    "hdf5": BuiltIn("arrays.hdf5.format", "HDF5", "HDF5", ("h5", "hdf5", "hdf", "he5")),
    "parquet": BuiltIn("parquet.format", "Parquet", "Parquet", ("parquet", "pq", "parq")),
    "zarr": BuiltIn(
        "arrays.zarr.format", "Zarr", "zarr", files=(".zarray", ".zgroup", ".zattrs", ".zmetadata", "zarr.json")
    ),
    "raw": BuiltIn("arrays.rows", "RawArrays"),
    # `x.bin` with `x.idx` beside it; see `detect`.
    "tokens": BuiltIn("tokens.format", "Tokens", "tokens (Megatron)"),
    "video": BuiltIn("video.format", "Video"),
    "zip": BuiltIn("zip", "Zip", "zip archives", ("zip",)),
}
_MODULES = {"Format": "base"} | {row.class_name: row.module for row in BUILT_IN.values()}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'streamer.formats' has no attribute {name!r}")
    return getattr(import_module(f"streamer.formats.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_MODULES)
