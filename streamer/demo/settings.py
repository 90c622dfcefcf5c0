"""The settings that the demo passes to the ranks, in a file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run.

    Attributes:
        url: the dataset.
        manifest: url of its manifest.
        storage_options: as fsspec takes them.
        cache_bytes: limit of the cache.
        batch_size: of one rank.
        workers: worker processes of one rank.
        events: path of the socket that receives the events of the ranks.
    """

    url: str
    manifest: str
    storage_options: dict[str, object]
    cache_bytes: int
    seed: int
    epochs: int
    batch_size: int
    workers: int
    events: str

    @classmethod
    def read(cls, path: Path) -> Settings:
        """From the file that `write` made."""
        return cls(**json.loads(path.read_text()))

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps(asdict(self)))
