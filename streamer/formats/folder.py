"""Folder: every object is one sample, its class the folder below the dataset's url."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from streamer.formats.base import Field, Indexing, SampleName, Span
from streamer.formats.names import extension
from streamer.manifest.model import ObjectRecord


class Folder(msgspec.Struct, frozen=True):
    """Raw files."""

    name: str = "folder"
    whole_objects: bool = True

    def accepts(self, key: str) -> bool:
        """All files but hidden ones (`.DS_Store`, `._a.jpg`) and the markers of empty folders."""
        basename = key.rsplit("/", 1)[-1]
        return bool(basename) and not basename.startswith(".")

    def index(self, target: ObjectRecord, start: int = 0) -> Indexing:
        """The object is the sample; needs no byte of it."""
        yield Span(0, target.size)

    def open(self, content: memoryview, name: SampleName) -> tuple[str, Sequence[Field]]:
        """One field, named by the extension (see `names`); the key is the path below the dataset's url."""
        return name.object_key, [Field(extension(name.object_key), content)]
