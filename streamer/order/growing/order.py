"""Orders a growing dataset: maps positions of its endless stream of rounds to samples.

`order/kinds/growing.py` makes it, and `order/plan.py` and `order/row_order.py` ask it as any order. L is the number of
lanes.
"""

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
# Rounds whose tables are kept: a batch may be in two, and the next one is planned while workers still make that batch.
_ROUNDS_KEPT = 3


class RoundTables:
    """The pieces of one round in some lanes, dealt as those of an epoch.

    Position p of the stream is in lane p mod L, also across rounds, so that a rank needs the same lanes in all of them.
    The samples of a pass that are left over when all lanes are equally long (the rest) go to the lanes in turn,
    beginning with the lane of the round's first position.

    Args:
        cohorts: cohorts of the dataset.
        of: the round.
        lanes: numbers of the lanes whose samples will be asked for, each once.

    Attributes:
        chunk: (T,) chunk of each piece, through all lanes.
        deal: the groups of the lanes; lanes that were not asked for have no pieces.
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
        """Returns the codes of the samples at positions of this round: (N,)."""
        lanes: Integers = positions % self._lanes
        return self._decoder.ordinals(self.deal.start[lanes] + (positions - self._round.start) // self._lanes)

    def needs(self, lanes: Integers, run: Batches) -> list[Needs]:
        """Returns the chunks of this round that some lanes use in a run of batches, which may reach beyond it."""
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
    """The order of one epoch of a growing dataset: a `SampleOrder` in positions of the stream of all rounds.

    With E samples per epoch, epoch e has the positions e E .. (e+1) E - 1, wherever rounds begin and end. A sample is
    given as its code, ordinal + n t, where t is another number for each use of a sample. Owned by one thread.

    Args:
        rounds: the known rounds; more may become known while the order is used.
        lanes: numbers of the lanes of the rank.
        epoch_samples: E.
        epoch: number of the epoch, from 0.

    Attributes:
        epoch: number of the epoch.
        origin: the first position of the epoch.
        samples: the position one past the last of the epoch.
        lanes: L.
        block_samples: positions that one call of `ordinals` should have.
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
        """Returns the order of another epoch, which shares the tables of rounds with this one."""
        other = GrowingOrder(self._rounds, self._lanes, self._epoch_samples, epoch)
        other._tables = self._tables
        return other

    def find_known(self, position: int) -> tuple[int, int]:
        """Returns the half-open positions of the round that has a position: later rounds may not be decided.

        Raises:
            IndexError: the round is not known.
        """
        of = self._rounds.find_round(position)
        return of.start, of.stop

    def ordinals(self, positions: Integers) -> Integers:
        """Returns the codes of the samples at some positions: (N,). Positions from `samples` on repeat samples.

        Raises:
            ConfigError: a negative position.
            IndexError: a position is in a round that is not known.
        """
        real = real_positions(np.asarray(positions, dtype=np.int64), self.samples, self.lanes)
        found = np.empty_like(real)
        for of in rounds_between(self._rounds, int(real.min()), int(real.max())) if real.size else ():
            mine = (real >= of.start) & (real < of.stop)
            found[mine] = self._table(of).codes(real[mine])
        return found

    def repeats(self, positions: Integers) -> Flags:
        """Returns which positions are padding, behind the epoch: (N,)."""
        padding: Flags = positions >= self.samples
        return padding

    def needs(self, split: RankSplit, run: Batches) -> list[Needs]:
        """Returns the chunks that a rank uses in a run of batches; see `SampleOrder.needs`.

        Raises:
            IndexError: a batch is in a round that is not known.
        """
        lanes = split.rank_lanes(run.first_position)
        rounds = rounds_between(self._rounds, run.first_position, run.stop_position - 1)
        return [need for of in rounds for need in self._table(of).needs(lanes, run)]

    def chunks(self, ordinals: Integers) -> tuple[Integers, Integers]:
        """Returns the chunk of each code, and the number of its use (twice the round, or one more): (N,) each."""
        cohorts = self._rounds.cohorts
        turns, own = np.divmod(ordinals, cohorts.samples)
        return np.searchsorted(cohorts.chunk_first, own, side="right") - 1, turns

    def _table(self, of: Round) -> RoundTables:
        """Returns the tables of a round, which are kept for the last few rounds."""
        if of not in self._tables:
            while len(self._tables) >= _ROUNDS_KEPT:
                del self._tables[next(iter(self._tables))]
            self._tables[of] = RoundTables(self._rounds.cohorts, of, unique(self._lanes))
        return self._tables[of]
