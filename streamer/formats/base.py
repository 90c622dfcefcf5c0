"""The seam of the formats: bytes of a container in, samples and fields out. No I/O here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from streamer.manifest.model import SampleName
from streamer.manifest.protocols import Indexer, Indexing, Need, Span

__all__ = ["Field", "Format", "Indexer", "Indexing", "Need", "SampleName", "Span"]


class Field(msgspec.Struct, frozen=True):
    """One field of a sample: its name (the extension, e.g. "jpg") and its bytes."""

    name: str
    content: memoryview


class Format(Indexer, Protocol):
    """One container format: how to find the samples (`index`), and how to open one."""

    def open(self, content: memoryview, name: SampleName) -> tuple[str, Sequence[Field]]:
        """Takes a sample's bytes apart: its key and its fields, in order. Copies nothing.

        Raises:
            DecodeError: bytes that are not what this format writes.
        """
        ...
