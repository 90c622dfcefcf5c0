"""The seam of the formats: bytes of a container in, samples and fields out. No I/O here."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from streamer.manifest.model import ObjectRecord


@dataclass(frozen=True, slots=True)
class Need:
    """An indexer asks for the bytes `[start, stop)` of the object it indexes; it gets them by `send`."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Span:
    """One sample in its object: the half-open byte range `[start, stop)`."""

    start: int
    stop: int


# Yields what it needs, is sent the bytes, returns the samples in order of position.
Indexing = Generator[Need | Span, bytes | None, None]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a sample: its name (the extension, e.g. "jpg") and its bytes."""

    name: str
    content: memoryview


@dataclass(frozen=True, slots=True)
class SampleName:
    """What the manifest knows of a sample besides its bytes (raw objects only).

    Attributes:
        object_key: the object's path below the dataset's url; "" for containers, whose names are in the bytes.
        label: class number from the parent folder, or -1.
    """

    object_key: str = ""
    label: int = -1


class Format(Protocol):
    """One container format."""

    name: str

    def index(self, target: ObjectRecord) -> Indexing:
        """Finds the samples of one object: yields `Need`s (answered with bytes) and `Span`s, in order.

        Raises:
            ManifestError: an archive that cannot be read; names object and offset.
        """
        ...

    def open(self, content: memoryview, name: SampleName) -> tuple[str, Sequence[Field]]:
        """Takes a sample's bytes apart: its key and its fields.

        Raises:
            DecodeError: bytes that are not what this format writes.
        """
        ...
