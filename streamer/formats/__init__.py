"""Lists the built-in formats, and lets users import their classes from here.

    StreamingDataset(url, format=TFRecord(features={"label": "int"}))

A format finds the samples in the bytes of objects, and the fields in the bytes of a sample; it does no I/O. `BUILT_IN`
is the table of formats: `formats/registry.py` finds a format in it by the name that the user writes, and
`formats/detect.py` by the names of files (`format="auto"`). A class is imported when it is first used. The loader, the
engine, `indexing/`, `shards/` and `cli/` compare names with `AUTO`.
`docs/formats.md` explains the formats.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from streamer.removed import refuse_name

if TYPE_CHECKING:
    from streamer.formats.base import Format as Format
    from streamer.formats.folder import Folder as Folder
    from streamer.formats.json_lines import JsonLines as JsonLines
    from streamer.formats.webdataset import WebDataset as WebDataset
    from streamer.formats.zip import Zip as Zip
    from streamer.media.audio.format import Audio as Audio
    from streamer.media.lerobot.format import LeRobot as LeRobot
    from streamer.media.video.format import Video as Video
    from streamer.tables.arrow_ipc.format import ArrowIPC as ArrowIPC
    from streamer.tables.hdf5.format import HDF5 as HDF5
    from streamer.tables.litdata.format import LitData as LitData
    from streamer.tables.lmdb import LMDB as LMDB
    from streamer.tables.mds import MDS as MDS
    from streamer.tables.npy import Npy as Npy
    from streamer.tables.npy import RawArrays as RawArrays
    from streamer.tables.parquet.format import Parquet as Parquet
    from streamer.tables.recordio import RecordIO as RecordIO
    from streamer.tables.tfrecord import TFRecord as TFRecord
    from streamer.tables.tokens.format import Tokens as Tokens
    from streamer.tables.zarr.format import Zarr as Zarr

AUTO = "auto"


class BuiltIn(NamedTuple):
    """A format of this package.

    Attributes:
        module: module of its class.
        class_name: name of its class.
        title: name of the format in messages of `format="auto"`, or "" if these never name it.
        endings: last endings of file names, in lower case and without the dot; that of a compression is taken off
            before ("jsonl" stands for .jsonl.gz, too). "auto" takes the format if the files have such endings, and
            refuses most mixtures with other files.
        files: names of files, in lower case, of which a single one is enough for "auto": the other files of the format
            have names that tell nothing. Empty for most formats.
    """

    module: str
    class_name: str
    title: str = ""
    endings: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Place of the class as an entry point names it: "module:class"."""
        return f"{self.module}:{self.class_name}"


BUILT_IN = {
    "arrow": BuiltIn("streamer.tables.arrow_ipc.format", "ArrowIPC", "Arrow", ("arrow", "feather", "ipc")),
    "audio": BuiltIn("streamer.media.audio.format", "Audio"),
    "folder": BuiltIn("streamer.formats.folder", "Folder"),
    "webdataset": BuiltIn("streamer.formats.webdataset", "WebDataset"),
    "mds": BuiltIn("streamer.tables.mds", "MDS", "MDS (MosaicML Streaming)", ("mds",)),
    "litdata": BuiltIn("streamer.tables.litdata.format", "LitData", "LitData"),
    # The files of LeRobot are Parquet and mp4.
    "lerobot": BuiltIn("streamer.media.lerobot.format", "LeRobot"),
    "lmdb": BuiltIn("streamer.tables.lmdb", "LMDB", "LMDB", ("lmdb", "mdb"), files=("data.mdb",)),
    "tfrecord": BuiltIn("streamer.tables.tfrecord", "TFRecord", "TFRecord", ("tfrecord", "tfrecords", "tfrec")),
    "recordio": BuiltIn("streamer.tables.recordio", "RecordIO", "RecordIO (MXNet)", ("rec",)),
    "jsonl": BuiltIn("streamer.formats.json_lines", "JsonLines", "JSON lines", ("jsonl", "ndjson", "jsonlines")),
    "npy": BuiltIn("streamer.tables.npy", "Npy"),
    "hdf5": BuiltIn("streamer.tables.hdf5.format", "HDF5", "HDF5", ("h5", "hdf5", "hdf", "he5")),
    "parquet": BuiltIn("streamer.tables.parquet.format", "Parquet", "Parquet", ("parquet", "pq", "parq")),
    "zarr": BuiltIn(
        "streamer.tables.zarr.format",
        "Zarr",
        "zarr",
        files=(".zarray", ".zgroup", ".zattrs", ".zmetadata", "zarr.json"),
    ),
    "raw": BuiltIn("streamer.tables.npy", "RawArrays"),
    # `x.bin` with `x.idx` beside it; see `detect`.
    "tokens": BuiltIn("streamer.tables.tokens.format", "Tokens", "tokens (Megatron)"),
    "video": BuiltIn("streamer.media.video.format", "Video"),
    "zip": BuiltIn("streamer.formats.zip", "Zip", "zip archives", ("zip",)),
}
_MODULES = {"Format": "streamer.formats.base"} | {row.class_name: row.module for row in BUILT_IN.values()}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        refuse_name(__name__, name)
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(_MODULES)
