"""Opens read-only folders below the cache's own: their chunks are read, and never written or evicted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from streamer.cache.folder import Folder, chunk_files, open_layer


class Layers:
    """Holds the layers of one cache, opened; the first one that has a chunk serves it.

    Raises:
        CacheError: one cannot be read.
        CacheVersionError: one has another layout.
    """

    def __init__(self, paths: Sequence[Path] = ()) -> None:
        self._folders: list[Folder] = [open_layer(path) for path in paths]
        self._of: dict[bytes, Folder] = {}
        for folder in self._folders:
            for key, _ in chunk_files(folder):
                self._of.setdefault(key, folder)

    def __repr__(self) -> str:
        return f"Layers({[str(root) for root in self.roots]})"

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, key: bytes) -> bool:
        return key in self._of

    @property
    def roots(self) -> tuple[Path, ...]:
        """The folders, in order."""
        return tuple(folder.path for folder in self._folders)

    @property
    def keys(self) -> list[bytes]:
        """The keys of the chunks of all layers."""
        return list(self._of)

    def path(self, key: bytes) -> Path | None:
        """Returns the file of a chunk, or None if no layer has it."""
        folder = self._of.get(key)
        return None if folder is None else folder.chunk_path(key)
