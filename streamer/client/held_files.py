"""Writes files of the cache folder again if another program removes them while a job needs them.

The pool of a rank's workers (`batches/workers/pool.py`) holds the files of its datasets and restores them before it
starts workers. A cleaner of temporary files may remove the cache folder under a job. The engine makes manifests and
annotations again, but not the files that ranks made of them (selections, rows, joins). A mapped file keeps its bytes
after its removal.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import time
from collections.abc import Iterable
from pathlib import Path

from streamer.base.linux import map_file

logger = logging.getLogger(__name__)

# `restore` waits this long for the engine, which makes the cache folder and the manifests again within 2 s
# (`FREE_SPACE_SECONDS` in `engine/maintenance.py`).
ENGINE_SECONDS = 4.0
_POLL_SECONDS = 0.1


class HeldFiles:
    """Maps files when it is made, and can write them again until it is dropped.

    A mapping needs no descriptor, and pages that are not read cost no memory.

    Args:
        paths: files, and folders of which every file is held (not those of folders inside). What does not exist, or is
            no file, is left out.

    Raises:
        OSError: a file or folder cannot be read.
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
        """Writes each held file that is missing; first gives the engine up to `ENGINE_SECONDS` to do so itself.

        Returns at once if no file is missing. A file that cannot be written is a warning in the log.
        """
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
    """Writes a file that appears as a whole; another process may write the same one. Raises OSError."""
    # The file has no name until it is complete: a kill leaves nothing.
    if hasattr(os, "O_TMPFILE"):
        with contextlib.suppress(OSError):
            descriptor = os.open(path.parent, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o644)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                with contextlib.suppress(FileExistsError):
                    # `src_dir_fd` makes Python call linkat(2), which follows the link in /proc; link(2) would not.
                    os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor)
            return
    # This file system has no nameless files.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
