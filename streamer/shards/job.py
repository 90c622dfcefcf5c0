"""What is packed: its identity, and the names of what it writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from streamer.manifest.beside import BESIDE

# Of the names of shards, where that of the output is none.
_ENDINGS = {"tokens": "bin"}
# Raised when the same samples would give other bytes.
_REVISION = 1
FOLDER = f"{BESIDE}pack/"
DESCRIPTION_NAME = "job.json"

Transform = Callable[[dict[str, Any]], Mapping[str, Any] | None]


class Job(msgspec.Struct, frozen=True):
    """One pack: the same job always writes the same bytes under the same names.

    Attributes:
        url: of the destination, with a slash at its end.
        prefix: what the names of its shards begin with.
        described: what its bytes follow from, as JSON has it.
    """

    url: str
    prefix: str
    described: dict[str, Any]

    @property
    def id(self) -> str:
        """16 hex characters: a digest of what its bytes follow from."""
        text = json.dumps([_REVISION, self.described], sort_keys=True)
        return blake2b(text.encode(), digest_size=8).hexdigest()

    @property
    def folder(self) -> str:
        """Of its receipts, below the destination."""
        return f"{FOLDER}{self.id}/"

    @property
    def output(self) -> str:
        """What its shards are written as: "tar", "parquet" or "tokens"."""
        return str(self.described.get("output", "tar"))

    def shard_name(self, number: int) -> str:
        """Below the destination."""
        return f"{self.prefix}{number:06d}.{_ENDINGS.get(self.output, self.output)}"

    def table_folder(self, digest: str) -> str:
        """Of the annotations of its source, below the destination."""
        return f"{self.folder}{digest}/"

    def index_name(self, number: int) -> str:
        """Of the index file of a shard of tokens, below the destination."""
        return f"{self.prefix}{number:06d}.idx"

    def receipt_name(self, number: int) -> str:
        """Below the destination."""
        return f"{self.folder}{number:06d}.json"


def transform_name(transform: Transform | None) -> str:
    """What tells one transform from another; not its code."""
    if transform is None:
        return ""
    named = transform if hasattr(transform, "__qualname__") else type(transform)
    return f"{named.__module__}.{named.__qualname__}"
