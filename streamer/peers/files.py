"""Chunk files as the peer server sees them: by name, whole or not at all."""

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
    try:
        descriptor = os.open(os.path.join(folder, relative_path(key)), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    return os.fdopen(descriptor, "rb", buffering=0)
