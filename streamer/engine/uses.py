"""The uses of chunks that a schedule consists of. Pure."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.errors import ProtocolError

# Three empty arrays and what holds them (CPython 3.11): an epoch without entries is not free.
_EPOCH_BYTES = 512
# A part looks a few times at each epoch; sorting costs as much as 50 looks.
_LOOKS = 16
# The look-ahead of all sessions may cost this share of the limit; the rest of the cache makes hits.
LOOKAHEAD_SHARE = 1 / 16

Columns = tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64], npt.NDArray[np.int64]]
Passes = npt.NDArray[np.uint32]


class Use(msgspec.Struct, frozen=True, order=True):
    """One entry of the schedule; ordered by first need. `number` counts the session's uses.

    Attributes:
        pass_number: of its part; the epoch, where each epoch is one pass.
    """

    first: int
    number: int
    last: int
    epoch: int
    chunk: int
    pass_number: int


class EpochUses:
    """The uses of one epoch, in the order of the schedule. Without `passes` the epoch is one pass."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.complete = False
        self.cursor = 0
        self.chunk: npt.NDArray[np.uint32] = np.empty(0, np.uint32)
        self.first: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self.last: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self.passes: Passes | None = None
        # Numbers of the uses in the order of their chunks, and these chunks.
        self._looks = 0
        self._by_chunk: npt.NDArray[np.uint32] | None = None
        self._sorted: npt.NDArray[np.uint32] = np.empty(0, np.uint32)

    def extend(self, columns: Columns, complete: bool, passes: Passes | None = None) -> None:
        """Appends a frame of the schedule.

        Raises:
            ProtocolError: not in order of the steps, or only some frames have passes.
        """
        if len(self.chunk) and len(columns[0]) and (self.passes is None) != (passes is None):
            raise ProtocolError(f"only a part of the schedule of epoch {self.epoch} has passes")
        first, last = columns[1], columns[2]
        # Compared, because a difference may wrap around; only the new ones, because there may be many frames.
        in_order = bool((first[1:] >= first[:-1]).all()) and bool((last >= first).all())
        if not in_order or (len(first) and len(self.first) and first[0] < self.first[-1]):
            raise ProtocolError(f"the schedule of epoch {self.epoch} is not in order of its steps")
        if passes is not None:
            self.passes = passes if self.passes is None else np.concatenate([self.passes, passes])
        self._by_chunk, self._sorted = None, self._sorted[:0]
        self.chunk = np.concatenate([self.chunk, columns[0]])
        self.first = np.concatenate([self.first, columns[1]])
        self.last = np.concatenate([self.last, columns[2]])
        self.complete = complete

    @property
    def exhausted(self) -> bool:
        """All its uses are held or finished."""
        return self.cursor >= len(self.chunk)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return _EPOCH_BYTES + sum(
            column.nbytes for column in (self.chunk, self.first, self.last, self.passes) if column is not None
        )

    def ahead(self, span: tuple[int, int], last_pass: int) -> npt.NDArray[np.uint32]:
        """Chunks of a span that are not held yet, in the passes up to `last_pass`."""
        if self.passes is None and self.epoch > last_pass:
            return self.chunk[:0]
        self._looks += 1
        if self._looks <= _LOOKS:
            chunk = self.chunk[self.cursor :]
            here = (chunk >= span[0]) & (chunk < span[1])
            return chunk[here if self.passes is None else here & (self.passes[self.cursor :] <= last_pass)]
        if self._by_chunk is None:  # else each part of a mix would look at the uses of all: 3 s of 4,096 parts
            self._by_chunk = np.argsort(self.chunk, kind="stable").astype(np.uint32)
            self._sorted = self.chunk[self._by_chunk]
        # Of the same type: for numbers of another one numpy would copy all of the column.
        first, stop = np.searchsorted(self._sorted, np.array(span, np.uint32))
        uses = np.sort(self._by_chunk[first:stop])
        uses = uses[np.searchsorted(uses, np.uint32(self.cursor)) :]
        return self.chunk[uses] if self.passes is None else self.chunk[uses[self.passes[uses] <= last_pass]]


def affordable_lookahead(wanted_bytes: int, limit_bytes: int, live_bytes: int) -> int:
    """The look-ahead of all sessions together: it may cost the hit rate `LOOKAHEAD_SHARE` of the limit."""
    missing = max(0.0, 1.0 - limit_bytes / max(1, live_bytes))
    return min(wanted_bytes, int(limit_bytes * LOOKAHEAD_SHARE / missing)) if missing else wanted_bytes


def open_bytes(columns: Columns, file_bytes: npt.NDArray[np.int64]) -> int:
    """The most bytes that the uses of a schedule have open at one step."""
    chunk, first, last = columns
    if not len(chunk):
        return 0
    size = file_bytes[chunk]
    steps = np.concatenate([first, last + 1])
    change = np.concatenate([size, -size])
    # Within one step, closing comes before opening.
    order = np.lexsort((change, steps))
    return int(np.cumsum(change[order]).max())
