"""The cohorts of a dataset: the parts in which a growing dataset admits its samples."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from streamer.errors import ConfigError
from streamer.order.cut import hashed_order
from streamer.order.hashing import TAG_CUT, Chunks, Integers, fold, fold_each
from streamer.order.spec import OrderSpec

TAG_COHORT = 40
# A pass has at least this many cohorts where the lanes have as many samples: data of a few chunks grows in steps, too.
_LEAST_COHORTS = 32
# The running pass and the one that the look-ahead reaches into.
_PASSES_KEPT = 2


class Pieces(NamedTuple):
    """Runs of samples inside chunks.

    Attributes:
        chunk: (P,) chunk numbers.
        offset: (P,) first sample of the run, from the start of the chunk.
        size: (P,) samples of the run.
        turn: (P,) the pass that admits it.
    """

    chunk: Integers
    offset: Integers
    size: Integers
    turn: Integers

    @classmethod
    def join(cls, parts: list[Pieces]) -> Pieces:
        """Several as one."""
        return cls(*(np.concatenate(column) for column in zip(*parts, strict=True)))


class CohortChunks(NamedTuple):
    """The chunks of some cohorts in some lanes; a chunk on the edge of two lanes has two entries.

    Attributes:
        chunk: (C,) chunk numbers.
        first, last: (C,) the cohorts that its samples belong to, both inclusive.
    """

    chunk: Chunks
    first: Integers
    last: Integers


class _LanePass(NamedTuple):
    """One lane in the admission order of one pass; `stop`: (P,) samples of the lane up to the end of each piece."""

    chunk: Integers
    offset: Integers
    stop: Integers


class Cohorts:
    """The samples of a dataset in the order of their admission.

    The chunks, in hashed order, are cut into L lanes of `lane_samples` each; the n mod L samples at the end are the
    *rest*. In each pass over the data a lane's pieces are permuted anew, and admitted in cohorts of `size` samples of
    every lane. A pass has `per_pass` cohorts; the last one takes what remains of the lanes, and the rest. Cohorts are
    numbered on over the passes.

    Owned by one thread. Costs 12 bytes per chunk, and 24 per chunk of the asked lanes and pass.

    Args:
        spec: of the order.
        chunk_samples: (M,) samples per chunk.

    Raises:
        ConfigError: fewer samples than lanes, or no shuffle.
    """

    def __init__(self, spec: OrderSpec, chunk_samples: Integers) -> None:
        if spec.shuffle == "none":
            raise ConfigError("a growing dataset is shuffled: remove shuffle=False, or growing=", field="shuffle")
        self.spec = spec
        self.samples = int(chunk_samples.sum())
        self.lane_samples = self.samples // spec.lanes
        if self.lane_samples == 0:
            raise ConfigError(f"{self.samples} samples are fewer than lanes={spec.lanes}", field="lanes")
        chunks = max(1, int(np.count_nonzero(chunk_samples)))
        self.size = max(1, min(-(-self.samples // chunks), self.lane_samples // _LEAST_COHORTS))
        self.per_pass = max(1, self.lane_samples // self.size)
        self.chunk_first = np.concatenate([np.zeros(1, np.int64), np.cumsum(chunk_samples, dtype=np.int64)])
        self._lanes: dict[tuple[int, int], _LanePass] = {}

    def __repr__(self) -> str:
        return f"Cohorts(samples={self.samples}, lanes={self.spec.lanes}, size={self.size}, per_pass={self.per_pass})"

    def samples_before(self, cohort: int) -> int:
        """Samples of all cohorts before this one, over all lanes."""
        turn, number = divmod(cohort, self.per_pass)
        return turn * self.samples + number * self.size * self.spec.lanes

    def enough(self, samples: int) -> int:
        """The fewest cohorts, at most a pass of them, that have this many samples."""
        return min(self.per_pass, max(1, -(-samples // (self.size * self.spec.lanes))))

    def pieces(self, lane: int, begin: int, end: int) -> Pieces:
        """The pieces of a lane in the cohorts begin..end-1, without the rest."""
        found = [self._slice(lane, *run) for run in self._runs(begin, end)]
        return Pieces.join(found)

    def rests(self, begin: int, end: int) -> Pieces:
        """The single samples of the rest, once for each last cohort of a pass among begin..end-1."""
        turns = np.arange(begin // self.per_pass, end // self.per_pass, dtype=np.int64)
        chunk, offset = self._rest
        repeat, ones = len(turns), np.ones(len(chunk) * len(turns), np.int64)
        return Pieces(np.tile(chunk, repeat), np.tile(offset, repeat), ones, np.repeat(turns, len(chunk)))

    def chunks(self, lanes: Integers, begin: int, end: int, *, earlier: bool = False) -> CohortChunks:
        """The chunks whose first sample is in the cohorts begin..end-1 of some lanes, and those of the rest.

        Args:
            lanes: the lanes.
            begin: the first cohort.
            end: one past the last.
            earlier: also chunks that only go on in them.
        """
        runs, found = self._runs(begin, end), []
        for lane in lanes.tolist():
            found += [self._begun(lane, *run, earlier and run is runs[0]) for run in runs]
        rest = self.rests(begin, end)
        last = (rest.turn + 1) * self.per_pass - 1
        found.append(CohortChunks(rest.chunk.astype(np.uint32), last, last))
        return CohortChunks(*(np.concatenate(column) for column in zip(*found, strict=True)))

    # ------------------------------------------------------------ inside

    def _runs(self, begin: int, end: int) -> list[tuple[int, int, int]]:
        """The cohorts begin..end-1 by pass: its number, and half-open cohorts in it."""
        turns = range(begin // self.per_pass, -(-end // self.per_pass))
        return [
            (turn, max(begin - turn * self.per_pass, 0), min(end - turn * self.per_pass, self.per_pass))
            for turn in turns
        ]

    def _bound(self, cohort: int) -> int:
        """Samples of a lane before a cohort of a pass."""
        return self.lane_samples if cohort == self.per_pass else cohort * self.size

    def _slice(self, lane: int, turn: int, begin: int, end: int) -> Pieces:
        chunk, offset, stop = self._lane(turn, lane)
        low, high = self._bound(begin), self._bound(end)
        run = slice(int(np.searchsorted(stop, low, side="right")), int(np.searchsorted(stop, high, side="left")) + 1)
        start = np.append(0, stop)[:-1][run]
        first, last = np.maximum(start, low), np.minimum(stop[run], high)
        return Pieces(chunk[run], offset[run] + first - start, last - first, np.full(len(first), turn, np.int64))

    def _begun(self, lane: int, turn: int, begin: int, end: int, earlier: bool) -> CohortChunks:
        chunk, _, stop = self._lane(turn, lane)
        start = np.append(0, stop)[:-1]
        low, high = np.searchsorted(start, (self._bound(begin), self._bound(end))).tolist()
        if earlier:
            low = int(np.searchsorted(stop, self._bound(begin), side="right"))
        run = slice(low, high)
        base, most = turn * self.per_pass, self.per_pass - 1
        first = base + np.minimum(start[run] // self.size, most)
        last = base + np.minimum((stop[run] - 1) // self.size, most)
        return CohortChunks(chunk[run].astype(np.uint32), first, last)

    def _lane(self, turn: int, lane: int) -> _LanePass:
        if (turn, lane) not in self._lanes:
            while len(self._lanes) >= _PASSES_KEPT * self.spec.lanes:
                del self._lanes[next(iter(self._lanes))]
            self._lanes[turn, lane] = self._permuted(turn, lane)
        return self._lanes[turn, lane]

    def _permuted(self, turn: int, lane: int) -> _LanePass:
        order, stops = self._order
        low, high = lane * self.lane_samples, (lane + 1) * self.lane_samples
        run = slice(int(np.searchsorted(stops, low, side="right")), int(np.searchsorted(stops, high, side="left")) + 1)
        chunk = order[run].astype(np.int64)
        start = stops[run] - np.diff(self.chunk_first)[chunk]
        first, last = np.maximum(start, low), np.minimum(stops[run], high)
        # No lane in the hash: both pieces of a chunk on the edge of two lanes come up at nearly the same time.
        arranged = np.argsort(fold_each(fold(self.spec.seed, TAG_COHORT, turn), chunk))
        return _LanePass(chunk[arranged], (first - start)[arranged], np.cumsum((last - first)[arranged]))

    @cached_property
    def _order(self) -> tuple[Chunks, Integers]:
        """The chunks in hashed order, as an epoch cuts them, and the samples up to the end of each."""
        sizes = np.diff(self.chunk_first)
        order = hashed_order(fold(self.spec.seed, TAG_CUT), np.flatnonzero(sizes).astype(np.uint32))
        return order, np.cumsum(sizes[order])

    @cached_property
    def _rest(self) -> tuple[Integers, Integers]:
        """Chunk and offset of each sample of the rest."""
        order, stops = self._order
        place = np.arange(self.lane_samples * self.spec.lanes, self.samples, dtype=np.int64)
        at = np.searchsorted(stops, place, side="right")
        chunk = order[at].astype(np.int64)
        return chunk, place - (stops[at] - np.diff(self.chunk_first)[chunk])
