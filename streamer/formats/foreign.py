"""Datasets that are neither files nor tars: told by the names of their objects, so that these do not become samples."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from streamer.errors import ConfigError
from streamer.formats.names import COMPANIONS, base_name, is_common, is_hidden

# One such file is enough: the other objects of these formats have names that say nothing.
_MARKS = {
    **dict.fromkeys([".zarray", ".zgroup", ".zattrs", ".zmetadata", "zarr.json"], "zarr"),
    "data.mdb": "LMDB",
}
_ENDINGS = {
    "mds": "MDS (MosaicML Streaming)",
    **dict.fromkeys(["parquet", "pq", "parq"], "Parquet"),
    **dict.fromkeys(["arrow", "feather"], "Arrow"),
    **dict.fromkeys(["tfrecord", "tfrecords", "tfrec"], "TFRecord"),
    **dict.fromkeys(["jsonl", "ndjson", "jsonlines"], "JSON lines"),
    **dict.fromkeys(["h5", "hdf5", "hdf", "he5"], "HDF5"),
    **dict.fromkeys(["nc", "nc4"], "NetCDF"),
    **dict.fromkeys(["lmdb", "mdb"], "LMDB"),
    **dict.fromkeys(["array_record", "arrayrecord"], "ArrayRecord"),
    "lance": "Lance",
    "beton": "FFCV",
    "rec": "RecordIO (MXNet)",
    "avro": "Avro",
    "orc": "ORC",
    "zip": "zip archives",
}
# Those that are read, by the name of their format (see built_in.py).
_READ = {
    "HDF5": "hdf5",
    "JSON lines": "jsonl",
    "LitData": "litdata",
    "MDS (MosaicML Streaming)": "mds",
    "Parquet": "parquet",
    "RecordIO (MXNet)": "recordio",
    "TFRecord": "tfrecord",
    "zarr": "zarr",
}
# They accompany other data, too.
_COMPANIONS_OF_OTHERS = frozenset(["JSON lines"])
_ZARR_CHUNK = re.compile(r"(?:c\.)?\d+(?:\.\d+)*")
_PACKED = re.compile(r"\.(zstd|zst|gz|snappy|br|bz2|lz4|xz)$")
_LITDATA = re.compile(r"chunk-\d+-\d+(\.[\w:]+)?\.bin")
# "train.tfrecord-00000-of-00010", and "train-00000-of-01024" as TensorFlow's ImageNet has it.
_SHARD = re.compile(r".+-\d{5}-of-\d{5}")


def special_format(keys: Sequence[str]) -> str:
    """The name of the built-in format that objects of these names are in; "" for files and tars.

    Documents beside the data (README.md, index.json) do not count.

    Raises:
        ConfigError: a format that is not read, or other files among those of one; says how many of which.
    """
    found: Counter[str] = Counter()
    example: dict[str, str] = {}
    odd = [key for key in keys if not is_common(key)]
    others, chunks, marked = len(keys) - len(odd), 0, ""
    for key in odd:
        name = base_name(key).lower()
        kind = _MARKS.get(name) or _kind(name)
        if kind:
            found[kind] += 1
            example.setdefault(kind, key)
            marked = marked or (kind if name in _MARKS else "")
        elif _ZARR_CHUNK.fullmatch(name):
            chunks += "." in name
        elif not is_hidden(key) and "." in name and name.rpartition(".")[2] not in COMPANIONS:
            others += 1
    others += chunks if marked != "zarr" else 0
    kind = marked or max(found, key=found.__getitem__, default="")
    if not kind or (not marked and found[kind] <= others) or (others and kind in _COMPANIONS_OF_OTHERS):
        return ""
    what = f"{kind} ({found[kind]} such objects, the first is {example[kind]})"
    if kind not in _READ:
        raise ConfigError(
            f"this is a dataset in {what}, which streamer does not read; write it as WebDataset tars, or pass "
            "format='folder' to get each file as one sample of bytes",
            field="format",
            found=kind,
            objects=found[kind],
        )
    if others:
        raise ConfigError(
            f"format='auto' found {what} and {others} other files; name the format: {_READ[kind]!r} takes the former "
            "only, 'folder' each file as a sample",
            field="format",
            found=kind,
            objects=found[kind],
        )
    return _READ[kind]


def _kind(name: str) -> str:
    """The format that a file name belongs to; "" for none."""
    bare = _PACKED.sub("", name)
    ending = bare.rpartition(".")[2] if "." in bare else ""
    if ending in _ENDINGS:
        return _ENDINGS[ending]
    if ending == "bin" and _LITDATA.fullmatch(bare):
        return "LitData"
    return "TFRecord" if "-of-" in bare and _SHARD.fullmatch(bare) else ""
