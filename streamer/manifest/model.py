"""The terms of the manifest as types: object, extent, chunk."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec


class Codec(IntEnum):
    """The change of the bytes between fetch and publish.

    IDENTITY: none; the manifest has the start of each sample.
    RECORDS: a recoder makes a record of each sample; the chunk file has a table of their starts.
    SHARED: the same, but records share parts, each of which is stored once.
    """

    IDENTITY = 0
    RECORDS = 1
    SHARED = 2


class ObjectRecord(msgspec.Struct, frozen=True):
    """An object in the store.

    Attributes:
        url: whole address, in fsspec's form.
        size: bytes.
        version: the text that pins a read: `etag:...`, `generation:...`, `version:...` as the store gives it, or
            `stat:<size>:<mtime_ns>` if it gives none. Compared as a whole.
    """

    url: str
    size: int
    version: str


# So many bytes between two extents of an object are fetched with them and dropped, as the end of a line or the head of
# an entry in a zip file: a request and its answer have more bytes of headers. Without it 5,000 lines of JSON took 5,000
# requests (2026-11-26).
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
        key: name in the cache: 16 bytes, digest(extents, object versions, codec).
        extents: byte ranges of its content in the store, in order.
        fetch_bytes: bytes to fetch (the sum of the extents).
        local_bytes: bytes on the SSD without header and checksums; the index's plan if it is recoded.
        hint: if it is recoded, the recoder's input besides the bytes (see `manifest.blocks`).
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
        """Returns the extents of the chunk-local bytes `[start, stop)` in the store; no extent is empty."""
        found = []
        offset = 0
        for extent in self.extents:
            lower, upper = max(start - offset, 0), min(stop - offset, extent.length)
            if lower < upper:
                found.append(Extent(extent.object, extent.start + lower, extent.start + upper))
            offset += extent.length
        return found

    def extent_of(self, start: int, stop: int) -> Extent:
        """Returns the range of a sample in its object; without bytes it is empty, behind the byte before it."""
        if found := self.extents_of(start, stop):
            return found[0]
        if before := self.extents_of(start - 1, start):
            return Extent(before[0].object, before[0].stop, before[0].stop)
        first = self.extents[0]
        return Extent(first.object, first.start, first.start)


class FieldSpec(msgspec.Struct, frozen=True, array_like=True):
    """One field of all samples of a dataset.

    Attributes:
        kind: how its bytes are decoded (see `streamer.formats.base.Field`).
    """

    name: str
    kind: str = ""


# The kind of fields of nested values: MessagePack with extensions, see `streamer.decode.values`.
NESTED = "nested"


class Facts(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Facts about the whole dataset, besides its objects and samples.

    Attributes:
        fields: fields of every sample; empty: each sample names its own.
        notes: facts that the format's opener or recoder needs (the columns of MDS, the tree of LitData).
        classes: class names by label.
    """

    fields: tuple[FieldSpec, ...] = ()
    notes: dict[str, Any] = msgspec.field(default_factory=dict)
    classes: tuple[str, ...] = ()


class SampleName(msgspec.Struct, frozen=True):
    """Metadata of a sample besides its bytes (raw objects only).

    Attributes:
        object_key: the object's path below the dataset's url; "" for containers, whose names are in the bytes.
        label: class number from the parent folder, or -1.
    """

    object_key: str = ""
    label: int = -1
