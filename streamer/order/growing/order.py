"""The order of a growing dataset: from positions of its endless stream of rounds to samples."""

from __future__ import annotations

import numpy as np

from streamer.base.sorting import unique
from streamer.order.deal import Deal
from streamer.order.decode import LaneDecoder
from streamer.order.growing.cohorts import CohortPieces, Cohorts
from streamer.order.growing.log import Round, Rounds, rounds_between
from streamer.order.hashing import Flags, Integers, fold, fold_each
from streamer.order.protocol import Batches, Needs
from streamer.order.rank_split import RankSplit, real_positions
from streamer.order.schedule import piece_runs

TAG_ROUND_LANE = 41
TAG_ROUND_GROUP = 42
TAG_ROUND_PIECE = 43
# A batch may be in two rounds; the one after them is planned while workers still make it.
_ROUNDS_KEPT = 3


class RoundTables:
    """The pieces of one round in some lanes, dealt as those of an epoch.

    Position p of the stream is in lane p mod L, also across rounds, so that a rank needs the same lanes in all of them.
    The rest of a pass (n mod L samples) goes to the lanes in turn, beginning with that of the round's first position.
    """

    def __init__(self, cohorts: Cohorts, of: Round, lanes: Integers) -> None:
        spec = cohorts.spec
        self._round = of
        self._lanes = spec.lanes
        rests = cohorts.rests(of.begin, of.end)
        pieces: list[CohortPieces] = []
        for lane in lanes.tolist():
            mine = slice((lane - of.start) % spec.lanes, None, spec.lanes)
            both = zip(cohorts.pieces(lane, of.begin, of.end), (column[mine] for column in rests), strict=True)
            joined = CohortPieces._make(map(np.concatenate, both))
            # The round has an order of its own.
            state = fold_each(fold(spec.seed, TAG_ROUND_LANE, of.number), joined.chunk)
            arranged = np.argsort(fold_each(state, joined.turn << 32 | joined.offset))
            pieces.append(CohortPieces._make(column[arranged] for column in joined))
        counts = np.zeros(spec.lanes + 1, np.int64)
        counts[lanes + 1] = [len(each.chunk) for each in pieces]
        self.chunk, offset, size, turn = map(np.concatenate, zip(*pieces, strict=True))
        prefix = np.concatenate([np.zeros(1, np.int64), np.cumsum(size)])
        first = np.cumsum(counts)
        # Other lanes have no pieces here.
        self.deal = Deal(spec.lane_window, prefix, first, prefix[first])
        # 2 r + (pass mod 2) distinguishes the uses of a sample: a round trains at most all data, so two passes.
        self._turn = 2 * of.number + turn % 2
        codes = self._turn * cohorts.samples + cohorts.chunk_first[self.chunk] + offset
        every = np.arange(spec.lanes, dtype=np.uint64)
        group, piece = (fold_each(fold(spec.seed, tag, of.number), every) for tag in (TAG_ROUND_GROUP, TAG_ROUND_PIECE))

        def piece_start(lanes: Integers, pieces: Integers) -> Integers:
            found: Integers = codes[first[lanes] + pieces]
            return found

        self._decoder = LaneDecoder(self.deal, (group, piece), piece_start)

    def codes(self, positions: Integers) -> Integers:
        """Returns the codes of the samples at positions of this round, (N,)."""
        lanes: Integers = positions % self._lanes
        return self._decoder.ordinals(self.deal.start[lanes] + (positions - self._round.start) // self._lanes)

    def needs(self, lanes: Integers, run: Batches) -> list[Needs]:
        """Returns the chunks of some lanes in a run of batches, which may begin before the round and end after it."""
        found = []
        start = self._round.start
        for lane in lanes.tolist():
            # Index i of a lane is at position head + i L.
            head = start + (lane - start) % self._lanes
            length = int(self.deal.start[lane + 1] - self.deal.start[lane])
            ends = (run.first_position, run.stop_position)
            begin, end = (min(max(-(-(position - head) // self._lanes), 0), length) for position in ends)
            if begin < end:
                pieces, first, stop = piece_runs(self.deal, lane, (begin, end))
                numbers = (run.number(head + self._lanes * first), run.number(head + self._lanes * (stop - 1)))
                found.append(Needs(self.chunk[pieces].astype(np.uint32), *numbers, self._turn[pieces]))
        return found


class GrowingOrder:
    """The order of one epoch of a growing dataset: an `Order` in positions of the stream of all rounds.

    Epoch e has the positions e E .. (e+1) E - 1, wherever rounds begin and end. The samples are codes: ordinal + n t,
    where t is another number for each use of a sample. Owned by one thread.

    Args:
        rounds: the known rounds; more may become known while the order is used.
        lanes: numbers of the lanes of the rank.

    Attributes:
        origin: the first position of the epoch.
        samples: one past the last position of the epoch.
        lanes: L.
        block_samples: see `EpochOrder`.
    """

    block_samples = 4096

    def __init__(self, rounds: Rounds, lanes: Integers, epoch_samples: int, epoch: int) -> None:
        self._rounds = rounds
        self._lanes = lanes
        self._epoch_samples = epoch_samples
        self.epoch = epoch
        self.origin = epoch * epoch_samples
        self.samples = self.origin + epoch_samples
        self.lanes = rounds.cohorts.spec.lanes
        self._tables: dict[Round, RoundTables] = {}

    def __repr__(self) -> str:
        return f"GrowingOrder(epoch={self.epoch}, {self._rounds!r})"

    def open_epoch(self, epoch: int) -> GrowingOrder:
        """Returns the order of another epoch, with the same tables."""
        other = GrowingOrder(self._rounds, self._lanes, self._epoch_samples, epoch)
        other._tables = self._tables
        return other

    def find_known(self, position: int) -> tuple[int, int]:
        """Returns the positions of its round, half-open: the next one may not be decided.

        Raises:
            IndexError: the round is not known.
        """
        of = self._rounds.find_round(position)
        return of.start, of.stop

    def ordinals(self, positions: Integers) -> Integers:
        """Returns the codes of the samples at some positions, (N,); from `samples` on they repeat samples.

        Raises:
            IndexError: positions of unknown rounds.
        """
        real = real_positions(np.asarray(positions, dtype=np.int64), self.samples, self.lanes)
        found = np.empty_like(real)
        for of in rounds_between(self._rounds, int(real.min()), int(real.max())) if real.size else ():
            mine = (real >= of.start) & (real < of.stop)
            found[mine] = self._table(of).codes(real[mine])
        return found

    def repeats(self, positions: Integers) -> Flags:
        """Returns which positions are padding, (N,)."""
        padding: Flags = positions >= self.samples
        return padding

    def needs(self, split: RankSplit, run: Batches) -> list[Needs]:
        """Returns the chunks that a rank uses in a run of batches of known rounds; never narrower than the truth."""
        lanes = split.rank_lanes(run.first_position)
        rounds = rounds_between(self._rounds, run.first_position, run.stop_position - 1)
        return [need for of in rounds for need in self._table(of).needs(lanes, run)]

    def chunks(self, ordinals: Integers) -> tuple[Integers, Integers]:
        """Returns the chunk, and the number of the use, of some codes, both (N,)."""
        cohorts = self._rounds.cohorts
        turns, own = np.divmod(ordinals, cohorts.samples)
        return np.searchsorted(cohorts.chunk_first, own, side="right") - 1, turns

    def _table(self, of: Round) -> RoundTables:
        if of not in self._tables:
            while len(self._tables) >= _ROUNDS_KEPT:
                del self._tables[next(iter(self._tables))]
            self._tables[of] = RoundTables(self._rounds.cohorts, of, unique(self._lanes))
        return self._tables[of]
