"""Holds the schedule of an epoch in arrays, and converts it to and from the messages (`Extend`) that carry it.

The readers in `loader/`, `cli/warming.py` and `tools/planning/simulate.py` make schedules, `batches/samples/` adds the
chunks of joins. `client/session.py` sends schedules, `service/server.py` reads them, and the engine's sessions fetch by
them.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.errors import ProtocolError
from streamer.wire.messages import Extend

# 20 bytes per entry, 24 with its pass: 4.8 MB per frame.
_ENTRIES_PER_FRAME = 200_000


class EpochSchedule(msgspec.Struct, frozen=True):
    """Lists the chunks of one epoch in order of first need: one entry for each use of a chunk.

    Attributes:
        epoch: number of the epoch.
        chunk: uint32 (entries,).
        first: int64 (entries,), ascending: the first step that reads the entry.
        last: int64 (entries,): the last step that reads it, inclusive.
        passes: uint32 (entries,), the pass over its part that each entry belongs to, ascending within a lane of a
            part; None if each epoch is one pass.
        values: new values of the parts from this epoch on; empty if they are unchanged.
    """

    epoch: int
    chunk: npt.NDArray[np.uint32]
    first: npt.NDArray[np.int64]
    last: npt.NDArray[np.int64]
    passes: npt.NDArray[np.uint32] | None = None
    values: tuple[float, ...] = ()

    @property
    def final_step(self) -> int:
        """Number of the last step that reads a chunk, or -1 if there is none."""
        return int(self.last.max(initial=-1))

    def from_step(self, step: int) -> EpochSchedule:
        """Returns a schedule of the entries that are still read at `step` or later; the numbers of steps are kept."""
        ahead = self.last >= step
        passes = None if self.passes is None else self.passes[ahead]
        return EpochSchedule(
            epoch=self.epoch,
            chunk=self.chunk[ahead],
            first=self.first[ahead],
            last=self.last[ahead],
            passes=passes,
            values=self.values,
        )

    def cut(self, session: int) -> Iterator[Extend]:
        """Yields the messages that send the schedule, one at least; the last one has `complete`.

        Args:
            session: number of the session in its connection.
        """
        count = len(self.chunk)
        for start in range(0, max(count, 1), _ENTRIES_PER_FRAME):
            stop = min(start + _ENTRIES_PER_FRAME, count)
            yield Extend(
                session=session,
                epoch=self.epoch,
                chunk=self.chunk[start:stop].astype("<u4").tobytes(),
                first=self.first[start:stop].astype("<i8").tobytes(),
                last=self.last[start:stop].astype("<i8").tobytes(),
                complete=stop == count,
                passes=b"" if self.passes is None else self.passes[start:stop].astype("<u4").tobytes(),
                values=list(self.values),
            )

    @classmethod
    def read(cls, frame: Extend) -> EpochSchedule:
        """Returns the part of a schedule that a message carries.

        The caller checks the rest: that columns have the same length, and what the numbers are.

        Raises:
            ProtocolError: a column ends inside a number.
        """
        if len(frame.chunk) % 4 or len(frame.first) % 8 or len(frame.last) % 8 or len(frame.passes) % 4:
            raise ProtocolError("schedule columns are cut short")
        return cls(
            epoch=frame.epoch,
            chunk=np.frombuffer(frame.chunk, "<u4").astype(np.uint32, copy=False),
            first=np.frombuffer(frame.first, "<i8").astype(np.int64, copy=False),
            last=np.frombuffer(frame.last, "<i8").astype(np.int64, copy=False),
            passes=np.frombuffer(frame.passes, "<u4").astype(np.uint32, copy=False) if frame.passes else None,
            values=tuple(frame.values),
        )
