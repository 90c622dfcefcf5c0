"""Divides a growing dataset into cohorts, the parts in which it admits its samples.

`batches/samples/opened.py` makes them, `order/growing/log.py` and `order/growing/order.py` ask which samples a cohort
has, and `loader/kinds/growing/` asks which chunks. A dataset has n samples in L lanes; a piece is a run of samples of
one chunk in one lane.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from streamer.errors import ConfigError
from streamer.order.cut import sort_by_hash
from streamer.order.hashing import TAG_CUT, Chunks, Integers, fold, fold_each
from streamer.order.rows.sets import Sets
from streamer.order.spec import OrderSpec

TAG_COHORT = 40
# Least cohorts of a pass, if lanes have as many samples: so data of a few chunks grows in steps, too.
_LEAST_COHORTS = 32
# Passes whose lanes are kept: the running one, and the one that the look-ahead reaches into.
_PASSES_KEPT = 2


class CohortPieces(NamedTuple):
    """P pieces: runs of samples inside chunks, and when they are admitted.

    Attributes:
        chunk: (P,) number of the chunk.
        offset: (P,) first sample of the run, counted from the start of the chunk.
        size: (P,) number of samples of the run.
        turn: (P,) number of the pass that admits it.
    """

    chunk: Integers
    offset: Integers
    size: Integers
    turn: Integers


class CohortChunks(NamedTuple):
    """The chunks of some cohorts in some lanes; a chunk has an entry for each lane and pass, and more in the rest.

    Attributes:
        chunk: (C,) number of the chunk.
        first, last: (C,) the first and the last cohort that has samples of it, both inclusive.
    """

    chunk: Chunks
    first: Integers
    last: Integers


class _Sequence(NamedTuple):
    """P pieces one after the other.

    Attributes:
        chunk, offset: see `CohortPieces`.
        stop: (P,) number of samples up to the end of each piece.
    """

    chunk: Integers | Chunks
    offset: Integers
    stop: Integers

    @property
    def start(self) -> Integers:
        """Number of samples before each piece: (P,)."""
        return np.append(0, self.stop)[:-1]

    def cut(self, low: int, high: int) -> tuple[Integers, Integers, Integers]:
        """Returns chunk, offset and size of the pieces that have the samples low..high-1, cut to these samples."""
        begin, end = int(np.searchsorted(self.stop, low, "right")), int(np.searchsorted(self.stop, high)) + 1
        stop = self.stop[begin:end]
        start = np.append(self.stop[begin - 1] if begin else 0, stop)[:-1]
        first, last = np.maximum(start, low), np.minimum(stop, high)
        return self.chunk[begin:end].astype(np.int64), self.offset[begin:end] + first - start, last - first


class Cohorts:
    """The samples of a dataset in the order of their admission.

    The chunks, in hashed order, are cut into L lanes of `lane_samples` each; the n mod L samples at the end are the
    *rest*. In each pass over the data, the pieces of a lane are permuted anew, and admitted in cohorts of `size`
    samples of every lane. A pass has `per_pass` cohorts. The last one takes what remains of the lanes, and the rest.
    The numbers of cohorts go on from pass to pass.

    Owned by one thread. Takes 20 bytes per chunk, and 24 per chunk of the lanes and passes that were asked for.

    Args:
        spec: what fixes the order.
        chunk_samples: (M,) samples of each chunk, or where documents are packed, (S,) rows of each set, which counts as
            a chunk then.
        sets: the chunks of each set, which arrive together, or None if documents are not packed.

    Attributes:
        spec: the same.
        samples: n.
        lane_samples: samples of each lane, without the rest.
        size: samples of a lane in a cohort.
        per_pass: number of cohorts of a pass.
        chunk_first: (M+1,) samples before each chunk.

    Raises:
        ConfigError: fewer samples than lanes, or no shuffle.
    """

    def __init__(self, spec: OrderSpec, chunk_samples: Integers, sets: Sets | None = None) -> None:
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
        self._sets = sets
        self._lanes: dict[tuple[int, int], _Sequence] = {}

    def __repr__(self) -> str:
        return f"Cohorts(samples={self.samples}, lanes={self.spec.lanes}, size={self.size}, per_pass={self.per_pass})"

    def samples_before(self, cohort: int) -> int:
        """Returns the number of samples of all cohorts before this one, over all lanes."""
        turn, number = divmod(cohort, self.per_pass)
        return turn * self.samples + number * self.size * self.spec.lanes

    def enough(self, samples: int) -> int:
        """Returns how many cohorts have this many samples together, at least 1, at most those of a pass."""
        return min(self.per_pass, max(1, -(-samples // (self.size * self.spec.lanes))))

    def pieces(self, lane: int, begin: int, end: int) -> CohortPieces:
        """Returns the pieces of a lane in the cohorts begin..end-1, without the rest."""
        found = []
        for turn, low, high in self._runs(begin, end):
            chunk, offset, size = self._lane(turn, lane).cut(self._samples_before(low), self._samples_before(high))
            found.append(CohortPieces(chunk, offset, size, np.full(len(chunk), turn, np.int64)))
        return CohortPieces._make(map(np.concatenate, zip(*found, strict=True)))

    def rests(self, begin: int, end: int) -> CohortPieces:
        """Returns the samples of the rest, a piece each, once for every last cohort of a pass among begin..end-1."""
        turns = np.arange(begin // self.per_pass, end // self.per_pass, dtype=np.int64)
        chunk, offset = self._rest
        repeat = len(turns)
        ones = np.ones(len(chunk) * len(turns), np.int64)
        return CohortPieces(np.tile(chunk, repeat), np.tile(offset, repeat), ones, np.repeat(turns, len(chunk)))

    def chunks(self, lanes: Integers, begin: int, end: int, *, earlier: bool = False) -> CohortChunks:
        """Returns the chunks whose samples begin in the cohorts begin..end-1 of some lanes, and those of the rest.

        Where documents are packed, these are the chunks of the sets.

        Args:
            lanes: the lanes.
            begin: the first cohort.
            end: the cohort behind the last one.
            earlier: whether to add the chunks whose samples begin in an earlier cohort and go on in these.
        """
        runs = self._runs(begin, end)
        found = []
        for lane in lanes.tolist():
            for number, (turn, first_cohort, end_cohort) in enumerate(runs):
                pieces = self._lane(turn, lane)
                low = self._samples_before(first_cohort)
                high = self._samples_before(end_cohort)
                if earlier and number == 0:
                    first = np.searchsorted(pieces.stop, low, side="right")
                else:
                    first = np.searchsorted(pieces.start, low)
                run = slice(int(first), int(np.searchsorted(pieces.start, high)))
                base = turn * self.per_pass
                edges = (pieces.start[run], pieces.stop[run] - 1)
                cohorts = (base + np.minimum(sample // self.size, self.per_pass - 1) for sample in edges)
                found.append(CohortChunks(pieces.chunk[run].astype(np.uint32), *cohorts))
        rest = self.rests(begin, end)
        last = (rest.turn + 1) * self.per_pass - 1
        found.append(CohortChunks(rest.chunk.astype(np.uint32), last, last))
        joined = CohortChunks._make(map(np.concatenate, zip(*found, strict=True)))
        if self._sets is None:
            return joined
        chunks, place = self._sets.expand(joined.chunk.astype(np.int64))
        return CohortChunks(chunks, joined.first[place], joined.last[place])

    def largest_bytes(self, chunk_bytes: Integers) -> int:
        """Returns the bytes of the largest chunk, or of the largest set; `chunk_bytes` has those of each chunk."""
        if self._sets is None:
            return int(chunk_bytes.max())
        return int(np.add.reduceat(chunk_bytes[self._sets.all_chunks], self._sets.first[:-1]).max())

    # ------------------------------------------------------------ inside

    def _runs(self, begin: int, end: int) -> list[tuple[int, int, int]]:
        """Divides the cohorts begin..end-1 by pass: returns the pass's number, and half-open cohorts within it."""
        per_pass = self.per_pass
        turns = range(begin // per_pass, -(-end // per_pass))
        return [(turn, max(begin - turn * per_pass, 0), min(end - turn * per_pass, per_pass)) for turn in turns]

    def _samples_before(self, cohort: int) -> int:
        """Returns the number of samples of a lane before a cohort, which is numbered within its pass."""
        return self.lane_samples if cohort == self.per_pass else cohort * self.size

    def _lane(self, turn: int, lane: int) -> _Sequence:
        """Returns the pieces of one lane in the order in which a pass admits them; those of two passes are kept."""
        if (turn, lane) not in self._lanes:
            while len(self._lanes) >= _PASSES_KEPT * self.spec.lanes:
                del self._lanes[next(iter(self._lanes))]
            chunk, offset, size = self._hashed.cut(lane * self.lane_samples, (lane + 1) * self.lane_samples)
            # The hash does not depend on the lane: both pieces of a chunk in two lanes come at nearly the same time.
            arranged = np.argsort(fold_each(fold(self.spec.seed, TAG_COHORT, turn), chunk))
            self._lanes[turn, lane] = _Sequence(chunk[arranged], offset[arranged], np.cumsum(size[arranged]))
        return self._lanes[turn, lane]

    @cached_property
    def _hashed(self) -> _Sequence:
        """The chunks with samples, in the hashed order in which an epoch cuts them, too (`order/cut.py`)."""
        sizes = np.diff(self.chunk_first)
        order = sort_by_hash(fold(self.spec.seed, TAG_CUT), np.flatnonzero(sizes).astype(np.uint32))
        return _Sequence(order, np.broadcast_to(np.int64(0), len(order)), np.cumsum(sizes[order]))

    @cached_property
    def _rest(self) -> tuple[Integers, Integers]:
        """Chunk and offset of each sample of the rest."""
        chunk, offset, size = self._hashed.cut(self.lane_samples * self.spec.lanes, self.samples)
        number = np.arange(int(size.sum())) - np.repeat(np.cumsum(size) - size, size)
        return np.repeat(chunk, size), np.repeat(offset, size) + number
