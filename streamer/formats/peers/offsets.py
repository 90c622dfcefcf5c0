"""The head of an MDS shard and of a LitData chunk: uint32 samples, then uint32 starts of the samples and the end."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.formats.base import Answer, Need, ObjectRecord, Span
from streamer.formats.failures import damaged

_NUMBER = np.dtype("<u4")
# A block has one range for all that it joins, and one for what describes them.
_BLOCK_BYTES = 8 << 20


def runs_of(lengths: NDArray[np.integer[Any]]) -> Iterator[tuple[int, int]]:
    """Neighbours that are a block together: half-open ranges of their numbers, of 8 MiB at most or of one."""
    first, filled = 0, 0
    for number, length in enumerate(lengths.tolist()):
        if number > first and filled + length > _BLOCK_BYTES:
            yield first, number
            first, filled = number, 0
        filled += length
    if len(lengths):
        yield first, len(lengths)


def head_bytes(samples: int) -> int:
    """Length of the head in bytes."""
    return _NUMBER.itemsize * (samples + 2)


def read_offsets(content: memoryview, samples: int, size: int, *, behind: bool = False) -> NDArray[np.int64]:
    """The starts of the samples and the end of the last one: int64, shape (samples + 1,).

    Args:
        content: at least the head.
        samples: as the index says.
        size: bytes of the shard.
        behind: whether other bytes may follow the samples.

    Raises:
        ValueError: the head contradicts the index or itself.
    """
    head = head_bytes(samples)
    if size < head or len(content) < head:
        raise ValueError(f"{size} bytes are too few for the places of {samples} samples")
    numbers = np.frombuffer(content, _NUMBER, samples + 2).astype(np.int64)
    found, offsets = int(numbers[0]), numbers[1:]
    if found != samples:
        raise ValueError(f"it has {found} samples, index.json says {samples}")
    if (np.diff(offsets) < 0).any() or offsets[0] < head:
        raise ValueError(f"the places of its {samples} samples are no ascending bytes behind its head")
    if offsets[-1] > size or (offsets[-1] < size and not behind):
        raise ValueError(f"its samples end at byte {offsets[-1]}, it has {size}")
    return offsets


def index_offsets(record: ObjectRecord, samples: int) -> Generator[Need | Span, Answer, NDArray[np.int64]]:
    """Reads the head of a shard.

    Raises:
        ManifestError: it contradicts the index or itself.
    """
    head = head_bytes(samples)
    content = (yield Need(0, head)) if head <= record.size else memoryview(b"")
    assert isinstance(content, memoryview)
    try:
        return read_offsets(content, samples, record.size)
    except ValueError as error:
        raise damaged(record, str(error), 0) from error


def spans_from(offsets: NDArray[np.int64], start: int) -> Iterator[Span]:
    """The samples that begin at byte `start` or behind it."""
    first = int(np.searchsorted(offsets, start))
    for begin, end in pairwise(offsets[first:].tolist()):
        yield Span(begin, end)
