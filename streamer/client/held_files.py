"""Keeps files of the cache folder that a job needs as long as it runs, and writes them again where they are removed.

A cleaner of temporary files may remove the cache folder under a job. The engine makes manifests and annotations again;
what the ranks made of them (selections, rows, joins) only they have. Mapped files keep their bytes after their removal.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import time
from collections.abc import Iterable
from pathlib import Path

from streamer.manifest.mmap_file import map_file

logger = logging.getLogger(__name__)

# The engine makes the folder again within 2 s, and with it the manifests (`cache.scrub.FREE_SPACE_SECONDS`).
ENGINE_SECONDS = 4.0
_POLL_SECONDS = 0.1


class HeldFiles:
    """Maps files, without a descriptor each: pages that are not read cost no memory.

    Args:
        paths: files, and folders of which every file is held.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._content: dict[Path, memoryview] = {}
        for path in paths:
            for file in sorted(path.iterdir()) if path.is_dir() else [path]:
                if file.is_file():
                    self._content[file] = map_file(file) if file.stat().st_size else memoryview(b"")

    def __repr__(self) -> str:
        return f"HeldFiles({len(self._content)} files)"

    def restore(self) -> None:
        """Writes files that another program has removed, once the engine had the time to do so itself."""
        deadline = time.monotonic() + ENGINE_SECONDS
        missing = list(self._content)
        while missing := [path for path in missing if not path.exists()]:
            if time.monotonic() >= deadline:
                break
            time.sleep(_POLL_SECONDS)
        for path in missing:
            try:
                path.parent.mkdir(exist_ok=True)
                _write(path, self._content[path])
            except OSError as error:
                logger.warning("%s was removed, and cannot be written again: %s", path, error)


def _write(path: Path, content: memoryview) -> None:
    """Writes a file that appears as a whole; another process may write the same one."""
    # The file has no name until it is complete: a kill leaves nothing.
    if hasattr(os, "O_TMPFILE"):
        with contextlib.suppress(OSError):
            descriptor = os.open(path.parent, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o644)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                with contextlib.suppress(FileExistsError):
                    # A folder makes it linkat(2), which follows the link of /proc.
                    os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor)
            return
    # This file system has no nameless files.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
