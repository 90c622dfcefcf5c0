"""Folders as buckets of the S3 server of tests/e2e/keyed_s3.py, and a real engine that reads them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from streamer import StreamingDataset
from streamer.client.engine_client import EngineClient
from streamer.client.settings import ClientSettings
from tests.e2e.keyed_s3 import KeyedS3


class Buckets:
    """A bucket for each folder, with a key of its own; `STREAMER_RUNTIME_DIR` must be `root/run`."""

    def __init__(self, folders: Mapping[str, Path], root: Path, cache_bytes: int = 200_000_000) -> None:
        self.contents = {
            name: {path.name: path.read_bytes() for path in sorted(at.iterdir())} for name, at in folders.items()
        }
        self.store = KeyedS3(self.contents, {name: f"key{name}" for name in folders})
        self._place: dict[str, Any] = {"cache_dir": root / "cache", "cache_bytes": cache_bytes}
        self.client = EngineClient(ClientSettings(runtime_dir=root / "run", **self._place))
        self.client.roots()

    def dataset(self, bucket: str, **options: Any) -> StreamingDataset:
        return StreamingDataset(
            f"s3://{bucket}/", storage_options=self.store.options(f"key{bucket}"), **self._place, **options
        )

    def requests(self, bucket: str, after: int = 0) -> int:
        """Counts reads of a bucket, without the first `after` reads of all."""
        return sum(name == bucket for name, _, _ in self.store.reads[after:])

    def change(self, bucket: str) -> None:
        """Replaces the first object of a bucket with another version."""
        self.contents[bucket][min(self.contents[bucket])] += bytes(512)

    def close(self) -> None:
        self.client.close()
        self.store.close()
