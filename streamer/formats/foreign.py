"""Datasets that are neither files nor tars: told by the names of their objects, so that these do not become samples."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from streamer.errors import ConfigError
from streamer.formats.names import COMPANIONS, base_name, is_common, is_hidden, is_shard

# One such file is enough: the other objects of these formats have names that say nothing.
_MARKS = {
    **dict.fromkeys([".zarray", ".zgroup", ".zattrs", ".zmetadata", "zarr.json"], "zarr"),
    "data.mdb": "LMDB",
}
_ENDINGS = {
    "mds": "MDS (MosaicML Streaming)",
    **dict.fromkeys(["parquet", "pq", "parq"], "Parquet"),
    **dict.fromkeys(["arrow", "feather", "ipc"], "Arrow"),
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
# `x.bin` with `x.idx` beside it.
_MEGATRON = "tokens (Megatron)"
# Those that are read, by the name of their format (see built_in.py).
_READ = {
    "Arrow": "arrow",
    "HDF5": "hdf5",
    "JSON lines": "jsonl",
    "LMDB": "lmdb",
    "LitData": "litdata",
    "MDS (MosaicML Streaming)": "mds",
    "Parquet": "parquet",
    "RecordIO (MXNet)": "recordio",
    "TFRecord": "tfrecord",
    "zarr": "zarr",
    _MEGATRON: "tokens",
    "zip archives": "zip",
}
# Blocks of N5 have numbers for names; what they are is in the files of this name.
_N5 = "attributes.json"
_TABLES, _DOCUMENTS = frozenset(["csv", "tsv"]), frozenset(["txt", "json", "xml"])
# They accompany other data, too.
_COMPANIONS_OF_OTHERS = frozenset(["JSON lines"])
_ZARR_CHUNK = re.compile(r"(?:c\.)?\d+(?:\.\d+)*")
_PACKED = re.compile(r"\.(zstd|zst|gz|snappy|br|bz2|lz4|xz)$")
_LITDATA = re.compile(r"chunk-\d+-\d+(\.[\w:]+)?\.bin")
# "train.tfrecord-00000-of-00010", and "train-00000-of-01024" as TensorFlow's ImageNet has it.
_SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}")
_IDX = re.compile(r".+[-.]idx\d-ubyte")


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
    indexes = {key[:-4] for key in odd if key.endswith(".idx")}
    for key in odd:
        name = base_name(key).lower()
        kind = _MARKS.get(name) or _kind(name) or (_MEGATRON if key.endswith(".bin") and key[:-4] in indexes else "")
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
    if not kind and len(odd) == len(keys) and (refusal := _companions(odd)):
        raise ConfigError(refusal, field="format")
    if not kind or (not marked and found[kind] <= others) or (others and kind in _COMPANIONS_OF_OTHERS):
        return ""
    what = f"{kind} ({found[kind]} such objects, the first is {example[kind]})"
    if kind not in _READ:
        raise ConfigError(_not_read(what), field="format", found=kind, objects=found[kind])
    if others:
        raise ConfigError(
            f"format='auto' found {what} and {others} other files; name the format: {_READ[kind]!r} takes the former "
            "only, 'folder' each file as a sample",
            field="format",
            found=kind,
            objects=found[kind],
        )
    return _READ[kind]


def _not_read(what: str) -> str:
    return (
        f"this is a dataset in {what}, which streamer does not read; write it as WebDataset tars, or pass "
        "format='folder' to get each file as one sample of bytes"
    )


def _companions(keys: Sequence[str]) -> str:
    """What is to be said where there is nothing but files that accompany others; "" for nothing."""
    visible = [key for key in keys if not is_hidden(key)]
    blocks = sum(base_name(key).isdecimal() for key in visible)
    if any(base_name(key) == _N5 for key in visible) and 2 * blocks >= len(visible):
        return _not_read(f"N5 ({blocks} blocks, the first object is {visible[0]})")
    # LICENSE and its like say nothing.
    named = [key for key in visible if "." in base_name(key)]
    endings = [_PACKED.sub("", base_name(key).lower()).rpartition(".")[2] for key in named]
    if not COMPANIONS.issuperset(endings):
        return ""
    tables = [key for key, ending in zip(named, endings, strict=True) if ending in _TABLES]
    documents = sum(ending in _DOCUMENTS for ending in endings)
    if tables and len(tables) >= documents:
        return (
            f"this is a dataset in CSV ({len(tables)} such objects, the first is {tables[0]}), of whose rows streamer "
            "reads no samples; write it as Parquet or JSON lines, join it to other files by annotations=, or pass "
            "format='folder' to get each file as one sample of bytes"
        )
    if endings == ["json"]:
        return (
            f"{named[0]} is one JSON document, or lines of JSON: format='jsonl' reads a value from each line, "
            "format='folder' takes it as the only sample; write the objects of a list on lines of their own"
        )
    return ""


def _kind(name: str) -> str:
    """The format that a file name belongs to; "" for none."""
    bare = _PACKED.sub("", name)
    ending = bare.rpartition(".")[2] if "." in bare else ""
    if ending in _ENDINGS:
        return _ENDINGS[ending]
    if ending == "json" and is_shard(bare):
        return "JSON lines"
    if ending == "bin" and _LITDATA.fullmatch(bare):
        return "LitData"
    if _IDX.fullmatch(bare):
        return "IDX (MNIST)"
    if "-of-" in bare and (shard := _SHARD.fullmatch(bare)):
        return _ENDINGS.get(shard[1].rpartition(".")[2], "TFRecord")
    return ""
