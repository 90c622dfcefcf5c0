"""Describes a pack: its identity, and the names of the files that it writes.

All of `shards/` uses it to find what a pack wrote, so that a later run goes on with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from streamer.manifest.beside import BESIDE
from streamer.shards.outputs.base import Output, ShardWriter
from streamer.shards.outputs.registry import OUTPUTS, USUAL_OUTPUT

# This number grows when a release writes the same samples as other bytes.
_REVISION = 1
FOLDER = f"{BESIDE}pack/"
DESCRIPTION_NAME = "job.json"

Transform = Callable[[dict[str, Any]], Mapping[str, Any] | None]


class Job(msgspec.Struct, frozen=True):
    """One pack: the same job writes the same bytes under the same names; Parquet only with one version of pyarrow.

    Attributes:
        url: url of the destination, ending in a slash.
        prefix: beginning of the names of shards.
        described: everything that determines its bytes, as JSON values. "output" is the name of the output, unless the
            shards are tars.
    """

    url: str
    prefix: str
    described: dict[str, Any]

    @property
    def id(self) -> str:
        """Digest of `described`, 16 hex characters."""
        text = json.dumps([_REVISION, self.described], sort_keys=True)
        return blake2b(text.encode(), digest_size=8).hexdigest()

    @property
    def folder(self) -> str:
        """Folder of its receipts, below the destination."""
        return f"{FOLDER}{self.id}/"

    @property
    def output(self) -> Output:
        """The output that writes its shards."""
        return OUTPUTS[self.described.get("output", USUAL_OUTPUT)]

    def open_writer(self, path: Path) -> ShardWriter:
        """Opens the writer of one shard, which overwrites an existing file; see `Output.open_writer`."""
        return self.output.open_writer(path, self.described)

    def shard_name(self, number: int) -> str:
        """Returns the name of a shard, below the destination."""
        return f"{self.prefix}{number:06d}.{self.output.extension}"

    def table_folder(self, digest: str) -> str:
        """Returns the folder of a table of annotations with this digest, below the destination."""
        return f"{self.folder}{digest}/"

    def index_name(self, number: int) -> str:
        """Returns the name of the index file of a shard of tokens, below the destination."""
        return f"{self.prefix}{number:06d}.idx"

    def receipt_name(self, number: int) -> str:
        """Returns the name of the receipt of a shard, below the destination."""
        return f"{self.folder}{number:06d}.json"


def transform_name(transform: Transform | None) -> str:
    """Returns the module and name of a function or of an object's class; "" for None. Its code is not looked at."""
    if transform is None:
        return ""
    named = transform if hasattr(transform, "__qualname__") else type(transform)
    return f"{named.__module__}.{named.__qualname__}"
