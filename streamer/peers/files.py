"""Files of the cache as the peer server sees them: by name, whole or not at all."""

from __future__ import annotations

import os
import stat
from typing import BinaryIO

from streamer.formats.chunkfile import HEADER_BYTES, relative_path

# Sent with the head of the answer.
FIRST_BYTES = HEADER_BYTES


def file_bytes(folder: str, key: bytes) -> int | None:
    """Length of a chunk's file; None: there is none."""
    try:
        found = os.lstat(os.path.join(folder, relative_path(key)))
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def open_chunk(folder: str, key: bytes) -> BinaryIO | None:
    """Opens a chunk's file; None: it has been evicted."""
    return _open(os.path.join(folder, relative_path(key)))


def open_manifest_file(folder: str, digest: str, name: str) -> BinaryIO | None:
    """Opens a file of a manifest; None: it is not there."""
    return _open(os.path.join(folder, "manifests", digest, name))


def _open(path: str) -> BinaryIO | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    return os.fdopen(descriptor, "rb", buffering=0)
