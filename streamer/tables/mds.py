"""The format "mds" reads shards of MosaicML Streaming.

`formats/registry.py` makes it for engine, recoders and workers. A shard is: uint32 samples, uint32 starts of the
samples and the end, the columns as JSON, the samples. An `index.json` lists the shards with their lengths, so that only
their heads are read. If any shard is compressed, each shard is one block. A sample is a uint32 length for each column
of varying length, and then the columns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np

from streamer.errors import RecodeError
from streamer.formats.base import Block, Facts, FieldSpec, Format, Records
from streamer.formats.compressed import COMPRESSIONS, check_library, decompress_shard
from streamer.formats.failures import make_damage_error
from streamer.formats.reading import spans_between
from streamer.manifest.beside import is_hidden
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Indexing, Source, Survey, Surveying
from streamer.tables.index_json import (
    LengthsOpener,
    ListedChunks,
    head_bytes,
    index_offsets,
    read_indexes,
    read_offsets,
)

_VERSION = 2
_SUFFIXES = (".mds", *(f".mds.{ending}" for ending in COMPRESSIONS))
_NUMBERS = {
    **{f"uint{8 * size}": f"<u{size}" for size in (1, 2, 4, 8)},
    **{f"int{8 * size}": f"<i{size}" for size in (1, 2, 4, 8)},
    **{f"float{8 * size}": f"<f{size}" for size in (2, 4, 8)},
}
_KINDS = {
    "bytes": "bytes",
    "str": "txt",
    "int": "<i8",
    **_NUMBERS,
    "str_int": "int-text",
    "str_float": "float-text",
    "str_decimal": "decimal-text",
    "jpeg": "jpg",
    "png": "png",
    "pil": "pil",
    "jpeg_array": "jpeg_array",
    "jpegarray": "jpeg_array",
    "list[pil]": "mds-list:pil",
    "list[jpeg]": "mds-list:jpg",
    "list[png]": "mds-list:png",
    "pkl": "pickle",
    "json": "json",
    "ndarray": "mds-ndarray",
}
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class _MdsFile(msgspec.Struct):
    """A file of a shard in index.json: its path from there, its length in bytes, and its hashes by their names."""

    basename: str
    bytes: _Count
    hashes: dict[str, str] = msgspec.field(default_factory=dict)


class _Shard(msgspec.Struct):
    """A shard in index.json; `zip_data` is its compressed file, and None if it has none."""

    version: int
    format: str
    samples: _Count
    raw_data: _MdsFile
    zip_data: _MdsFile | None = None
    compression: str | None = None
    column_names: list[str] = msgspec.field(default_factory=list)
    column_encodings: list[str] = msgspec.field(default_factory=list)
    column_sizes: list[_Count | None] = msgspec.field(default_factory=list)

    @property
    def columns(self) -> list[list[Any]]:
        """Name, encoding and length in bytes of each column; the length is 0 if it varies."""
        sizes = [size or 0 for size in self.column_sizes]
        return [list(row) for row in zip(self.column_names, self.column_encodings, sizes, strict=True)]


class _MdsIndex(msgspec.Struct):
    """The content of an index.json of MDS."""

    version: int
    shards: list[_Shard]


class _MdsNotes(msgspec.Struct, frozen=True, array_like=True):
    """What index and recoder must know of a shard.

    Attributes:
        samples: number of its samples.
        object_bytes: length of the object that is read.
        raw_bytes: length of the decompressed shard.
        compression: how the object is compressed, or "" if it is not.
        blocked: whether the shard is read as a block.
        hashes: hashes of the object by their names, or empty if it is not read as a block.
    """

    samples: int
    object_bytes: int
    raw_bytes: int
    compression: str
    blocked: bool
    hashes: dict[str, str]


_NOTES = msgspec.json.Decoder(_MdsNotes)
_INDEX = msgspec.json.Decoder(_MdsIndex)


class MDS(Format, frozen=True, forbid_unknown_fields=True):
    """Reads MDS shards, compressed or not. Several streams of MosaicML Streaming are several urls."""

    name = "mds"
    numbered_keys = True

    def accepts(self, key: str) -> bool:
        """Whether an object has the name of a shard, compressed or not."""
        return key.endswith(_SUFFIXES) and not is_hidden(key)

    def survey(self, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]) -> Surveying:
        """Reads each `index.json`. Of a shard that exists both compressed and not, the uncompressed object is taken.

        Raises:
            ManifestError: there is no index file, one cannot be used, a shard is missing, or columns differ.
        """
        indexes = yield from read_indexes(accepted, others, _INDEX.decode, _names)
        found = []
        for listed, index in indexes:
            for shard in index.shards:
                name = shard.raw_data.basename
                if index.version != _VERSION or shard.version != _VERSION:
                    version = shard.version if index.version == _VERSION else index.version
                    raise listed.refusal(
                        f"version {version} of MDS; {_VERSION} is read, which MosaicML Streaming writes"
                    )
                if shard.format != "mds":
                    raise listed.refusal(f"{name} is of format {shard.format!r}, not 'mds'; name that format")
                if not len(shard.column_names) == len(shard.column_encodings) == len(shard.column_sizes):
                    raise listed.refusal(f"{name} has not as many names of columns as encodings or lengths")
                found.append((listed, shard))
        columns = found[0][1].columns if found else []
        for listed, shard in found:
            if shard.columns != columns:
                raise listed.refusal(
                    f"the columns of {shard.raw_data.basename} are {_describe_columns(shard.columns)}, those of the "
                    f"first shard {_describe_columns(columns)}; shards of different columns are different datasets"
                )
        chosen = {record.url: (record, file, shard) for record, file, shard in map(_file_of, found)}
        packed = {_compression(shard) for _, file, shard in chosen.values() if file is not shard.raw_data}
        # If any shard is compressed, all are read as blocks, because a dataset has either blocks or spans.
        sources = [_source(*one, blocked=bool(packed)) for one in chosen.values()]
        notes = {"sizes": [size for *_, size in columns], "packed": sorted(packed)}
        heads = 0 if packed else sum(head_bytes(shard.samples) for *_, shard in chosen.values())
        try:
            fields = tuple(FieldSpec(name, _kind(encoding)) for name, encoding, _ in columns)
        except KeyError as error:
            reason = f"a column is encoded as {error.args[0]!r}, which MosaicML Streaming does not have"
            raise indexes[0][0].refusal(reason) from None
        return Survey(sources, Facts(fields, notes), heads)

    def index(self, source: Source, facts: Facts, start: int = 0) -> Indexing:
        """Finds the samples of a shard by its head; yields one block, and reads nothing, if it is read as a block.

        Raises:
            ManifestError: the shard does not have what the index file says.
        """
        notes = _NOTES.decode(source.notes)
        record = source.record
        if record.size != notes.object_bytes:
            raise make_damage_error(record, f"{record.size} bytes, index.json says {notes.object_bytes}", 0)
        if not notes.blocked:
            yield from spans_between((yield from index_offsets(record, notes.samples)), start)
        elif notes.raw_bytes < head_bytes(notes.samples):
            raise make_damage_error(record, f"{notes.raw_bytes} bytes are too few for {notes.samples} samples", 0)
        else:
            records = notes.raw_bytes - head_bytes(notes.samples)
            yield Block(((0, record.size),), notes.samples, records, source.notes)

    def opener(self, facts: Facts) -> LengthsOpener:
        """Returns what splits samples into their columns."""
        return LengthsOpener(facts.fields, facts.notes["sizes"], "an MDS sample")

    def recoder(self, facts: Facts) -> _MdsRecoder:
        """Returns what decompresses shards; raises ConfigError if a library for that is not installed."""
        for compression in facts.notes["packed"]:
            check_library(compression)
        return _MdsRecoder()


class _MdsRecoder:
    """Makes records of the samples of whole shards, as a `Recoder`; the hint is `_MdsNotes` in JSON."""

    def recode(self, content: memoryview, samples: int, hint: bytes) -> Records:
        """Makes records of a shard; raises RecodeError if it is not the one that its index.json describes."""
        try:
            notes = _NOTES.decode(hint)
            # The first hash that hashlib can compute is checked. It can compute none of xxhash.
            known = [
                name for name in notes.hashes if name in hashlib.algorithms_available and not name.startswith("shake_")
            ]
            for name in known[:1]:
                actual = hashlib.new(name, content, usedforsecurity=False).hexdigest()
                if actual != notes.hashes[name]:
                    raise ValueError(f"its {name} is {actual}, index.json says {notes.hashes[name]}")
            shard = decompress_shard(notes.compression, content, notes.raw_bytes)
            offsets = read_offsets(shard, samples, len(shard))
        except ValueError as error:  # msgspec's errors are such, too
            raise RecodeError(f"not the MDS shard that its index.json describes: {error}") from error
        return Records([shard[offsets[0] : offsets[-1]]], np.diff(offsets))


def _names(index: _MdsIndex) -> Iterator[str]:
    for shard in index.shards:
        yield shard.raw_data.basename
        if shard.zip_data:
            yield shard.zip_data.basename


def _file_of(found: tuple[ListedChunks, _Shard]) -> tuple[ObjectRecord, _MdsFile, _Shard]:
    """Returns the object from which a shard is read, its file in index.json, and the shard.

    Raises ManifestError if there is no such object, or its compression is not read.
    """
    listed, shard = found
    for file in (shard.raw_data, shard.zip_data):
        record = listed.find(file.basename) if file else None
        if file is None or record is None:
            continue
        if file is not shard.raw_data and _compression(shard) not in COMPRESSIONS:
            raise listed.refusal(
                f"{file.basename} is compressed with {shard.compression!r}, not with one of {', '.join(COMPRESSIONS)}"
            )
        return record, file, shard
    raise listed.refusal(f"{shard.raw_data.basename} is not among the {len(listed.objects)} shards below its folder")


def _compression(shard: _Shard) -> str:
    """Returns the name of the compression without its level."""
    return (shard.compression or "").partition(":")[0]


def _source(record: ObjectRecord, file: _MdsFile, shard: _Shard, *, blocked: bool) -> Source:
    """Returns the source for the object of a shard, with its notes."""
    compression = "" if file is shard.raw_data else _compression(shard)
    notes = _MdsNotes(
        samples=shard.samples,
        object_bytes=file.bytes,
        raw_bytes=shard.raw_data.bytes,
        compression=compression,
        blocked=blocked,
        hashes=file.hashes if blocked else {},
    )
    return Source(record, msgspec.json.encode(notes))


def _kind(encoding: str) -> str:
    """Returns the kind of a field for MDS's encoding of a column; raises KeyError if there is none."""
    if encoding.startswith("ndarray:"):
        _, dtype, *shape = encoding.split(":", 2)
        return f"{_NUMBERS[dtype]}[{shape[0]}]" if shape else f"mds-ndarray:{_NUMBERS[dtype]}"
    return _KINDS[encoding]


def _describe_columns(columns: Sequence[Sequence[Any]]) -> str:
    return ", ".join(f"{name}: {encoding}" for name, encoding, _ in columns)
