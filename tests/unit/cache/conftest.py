"""Fixtures of the cache's tests: chunks with known bytes, and a cache folder in a temporary place on the real disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from streamer.cache.chunk_files import Buffer, ChunkBytes
from streamer.config import CacheConfig


def ramp(length: int, start: int = 0) -> bytes:
    """Returns bytes that repeat 0 to 250 from `start`, so that a misplaced byte is seen by its value."""
    return (np.arange(start, start + length) % 251).astype(np.uint8).tobytes()


@pytest.fixture
def make_chunk() -> Callable[..., ChunkBytes]:
    """Makes chunk number n of `size` bytes: two parts, and three samples, one of them empty, with other cuts."""

    def make(number: int, size: int = 10_000) -> ChunkBytes:
        body = ramp(size, number)
        key = bytes([number * 37 % 256]) + number.to_bytes(15, "big")
        parts: list[Buffer] = [body[: size // 3], memoryview(body)[size // 3 :]]
        return ChunkBytes(key, parts, np.array([0, size // 2, size // 2, size]))

    return make


@pytest.fixture
def config(tmp_path: Path) -> CacheConfig:
    """Configures a cache folder with a limit of 4 MiB and no floor of free space."""
    return CacheConfig(directory=tmp_path / "cache", limit_bytes=4 << 20, free_floor_bytes=0)
