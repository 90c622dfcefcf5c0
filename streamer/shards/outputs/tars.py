"""Shards as WebDataset tars."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from streamer.errors import PackError
from streamer.formats.base import Field
from streamer.formats.webdataset import WebDataset
from streamer.shards.outputs.base import Output, ShardWriter
from streamer.shards.plan import TAR_OVERHEAD
from streamer.shards.receipts import Written, encode_numbers
from streamer.shards.tar import TarWriter
from streamer.shards.values import Sample, files_of, key_of, value_of


class TarOutput(Output):
    """WebDataset tars."""

    name = "tar"
    extension = "tar"
    format = WebDataset.name
    overhead_bytes = TAR_OVERHEAD
    needs_kinds = False
    is_indexed_by_receipts = True
    has_files = True

    def open_writer(self, path: Path, described: Mapping[str, Any]) -> ShardWriter:
        """Opens a tar; see `Output.open_writer`."""
        return TarShard(path)

    def field_value(self, field: Field) -> tuple[str, object]:
        """Returns bytes if the name tells their type, else the decoded value; see `Output.field_value`."""
        return value_of(field)


class TarShard(ShardWriter):
    """A tar of samples, each key once."""

    def __init__(self, path: Path) -> None:
        self._tar = TarWriter(path)
        self._seen: dict[str, int] = {}

    def add(self, sample: Sample, ordinal: int) -> None:
        """Adds a sample as files; its contents must stay as they are until `flush`."""
        key = key_of(sample, ordinal)
        files = files_of(sample)
        if (before := self._seen.setdefault(key, ordinal)) != ordinal:
            raise PackError(f"its key {key!r} is that of sample {before} too; every sample of a shard needs its own")
        self._tar.add(key, files)
        self.filled = self._tar.size

    def flush(self) -> None:
        """Writes the samples held in memory."""
        self._tar.flush()

    def finish(self) -> Written:
        """Writes the end mark."""
        self._tar.finish()
        blocks = encode_numbers(self._tar.blocks)
        sums = encode_numbers(self._tar.sums)
        return Written(size=self._tar.size, blocks=blocks, sums=sums)

    def close(self) -> None:
        """Closes the file."""
        self._tar.close()
