"""Defines the terms of the manifest as types: object, extent, chunk, codec, facts about a dataset.

Used by nearly every room: stores list `ObjectRecord`s, `fetch/` reads `Extent`s, the engine, recoders and packs
pass `Chunk`s on, and formats give `Facts`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec


class Codec(IntEnum):
    """Says how the bytes of a chunk change between fetch and publish.

    IDENTITY: they stay as they are, and the manifest has the start of each sample.
    RECORDS: a recoder makes a record of each sample, and the chunk file has a table of their starts.
    SHARED: the same as RECORDS, but records share parts, each of which is stored once.
    """

    IDENTITY = 0
    RECORDS = 1
    SHARED = 2


class ObjectRecord(msgspec.Struct, frozen=True):
    """An object in the store.

    Attributes:
        url: whole address, in fsspec's form.
        size: length in bytes.
        version: text that pins a read: `etag:...`, `generation:...`, `version:...` or `commit:...` as the store gives
            it, or `stat:<size>:<mtime_ns>` if the store gives none. `store.versions.require` compares it.
    """

    url: str
    size: int
    version: str


# Two extents of an object with at most this many bytes between them are fetched by one request, and those bytes are
# dropped: the end of a line, or the head of an entry in a zip file. The headers of a request and its answer are longer.
# With a request for each extent, 5,000 lines of JSON took 5,000 requests (2026-11-26).
MOST_GAP_BYTES = 1024


class Extent(msgspec.Struct, frozen=True):
    """The half-open byte range `[start, stop)` of one object."""

    object: ObjectRecord
    start: int
    stop: int

    @property
    def length(self) -> int:
        """Length in bytes."""
        return self.stop - self.start


class Chunk(msgspec.Struct, frozen=True):
    """Consecutive samples that are fetched, cached and evicted together.

    Attributes:
        index: number in its manifest, 0..M-1.
        key: name in the cache: 16 bytes, a digest of all that determines its bytes and samples.
        extents: byte ranges of its content in the store, in order, empty for objects without bytes.
        first_sample: ordinal of its first sample.
        samples: number of samples.
        fetch_bytes: bytes to fetch: the length of all extents.
        local_bytes: bytes on the SSD without header and checksums; of a recoded chunk as the index plans them.
        codec: change of its bytes between fetch and publish.
        hint: what the recoder needs besides the bytes (see `manifest.blocks`), empty if the chunk is not recoded.
    """

    index: int
    key: bytes
    extents: tuple[Extent, ...]
    first_sample: int
    samples: int
    fetch_bytes: int
    local_bytes: int
    codec: Codec = Codec.IDENTITY
    hint: bytes = b""

    def extents_of(self, start: int, stop: int) -> list[Extent]:
        """Returns where the fetched bytes `[start, stop)` of the chunk are in the store, without empty extents."""
        found = []
        offset = 0
        for extent in self.extents:
            lower, upper = max(start - offset, 0), min(stop - offset, extent.length)
            if lower < upper:
                found.append(Extent(extent.object, extent.start + lower, extent.start + upper))
            offset += extent.length
        return found

    def extent_of(self, start: int, stop: int) -> Extent:
        """Returns where a sample is in its object, from its bytes `[start, stop)` in the chunk, which has extents.

        A sample in several extents gets its range in the first of them. One without bytes gets an empty range, behind
        the byte before it.
        """
        if found := self.extents_of(start, stop):
            return found[0]
        if before := self.extents_of(start - 1, start):
            return Extent(before[0].object, before[0].stop, before[0].stop)
        first = self.extents[0]
        return Extent(first.object, first.start, first.start)


class FieldSpec(msgspec.Struct, frozen=True, array_like=True):
    """One field of all samples of a dataset.

    Attributes:
        name: name of the field.
        kind: how its bytes are decoded (see `streamer.formats.base.Field`).
    """

    name: str
    kind: str = ""


# The kind of fields of nested values: MessagePack with extensions, see `streamer.decode.values`.
NESTED = "nested"


class Facts(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Facts about the whole dataset, besides its objects and samples.

    Attributes:
        fields: fields of every sample, empty if each sample names its own.
        notes: facts that the format's opener or recoder needs (the columns of MDS, the tree of LitData); JSON values.
        classes: class names by label, where the files of the dataset have them, else empty.
    """

    fields: tuple[FieldSpec, ...] = ()
    notes: dict[str, Any] = msgspec.field(default_factory=dict)
    classes: tuple[str, ...] = ()


class SampleName(msgspec.Struct, frozen=True):
    """Path and class of a sample that is a whole object; openers get it with the sample's bytes.

    Attributes:
        object_key: path of the object below `base` of the manifest, or "" for a sample of a container.
        label: class number by the folder right below the url, or -1 if there is none.
    """

    object_key: str = ""
    label: int = -1
