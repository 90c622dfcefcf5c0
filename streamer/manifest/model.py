"""The words of the manifest as types: object, extent, chunk."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec


class Codec(IntEnum):
    """How bytes change between fetch and publish.

    IDENTITY: not at all; the manifest knows where each sample begins.
    RECORDS: a recoder makes a record of each sample; the chunk file has a table of where they begin.
    """

    IDENTITY = 0
    RECORDS = 1


class ObjectRecord(msgspec.Struct, frozen=True):
    """A thing in the store.

    Attributes:
        url: the whole address, as fsspec takes it.
        size: bytes.
        version: what pins a read: `etag:...`, `generation:...`, `version:...` as the store gives it, or
            `stat:<size>:<mtime_ns>` where it has none. Compared as text, whole.
    """

    url: str
    size: int
    version: str


class Extent(msgspec.Struct, frozen=True):
    """The half-open byte range `[start, stop)` of one object."""

    object: ObjectRecord
    start: int
    stop: int

    @property
    def length(self) -> int:
        """Bytes."""
        return self.stop - self.start


class Chunk(msgspec.Struct, frozen=True):
    """Consecutive samples that are fetched, cached and evicted together.

    Attributes:
        index: 0..M-1 in its manifest.
        key: 16 bytes, digest(extents, object versions, codec): the name in the cache.
        extents: where the bytes come from, in order.
        first_sample: ordinal of its first sample.
        samples: how many.
        fetch_bytes: bytes on the network (the sum of the extents).
        local_bytes: bytes on the SSD without header and checksums; for `Codec.RECORDS` as planned by the index.
        hint: for `Codec.RECORDS`, what the recoder needs besides the bytes (see `builder.blocks`).
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
        """Returns where the chunk-local bytes `[start, stop)` are in the store; no extent is empty."""
        found, offset = [], 0
        for extent in self.extents:
            lower, upper = max(start - offset, 0), min(stop - offset, extent.length)
            if lower < upper:
                found.append(Extent(extent.object, extent.start + lower, extent.start + upper))
            offset += extent.length
        return found


class FieldSpec(msgspec.Struct, frozen=True, array_like=True):
    """One field of all samples of a dataset.

    Attributes:
        name: of the field.
        kind: how its bytes are decoded (see `streamer.formats.base.Field`).
    """

    name: str
    kind: str = ""


class Facts(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What is known of the whole dataset, besides its objects and samples.

    Attributes:
        fields: of every sample; empty: each sample says which it has.
        notes: what the format's opener or recoder needs to know (the columns of MDS, the tree of LitData).
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
