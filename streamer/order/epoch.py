"""Orders one epoch of one dataset: maps positions to ordinals of samples, at random, without a table.

`order/kinds/one.py` makes it; the passes of a mix's members are such epochs (`order/mix/streams.py`), and rows are
ordered as samples (`order/row_order.py`). For predictions `tools/planning/simulate.py` and `batches/rows/explain.py`
make it, too. M is the number of chunks, L that of lanes, n that of samples.
"""

from __future__ import annotations

from functools import cached_property, partial

import numpy as np

from streamer.base.sorting import unique
from streamer.errors import ConfigError, ManifestError
from streamer.order.cut import LaneCut, cut_lanes, epoch_state, lane_starts
from streamer.order.deal import Deal
from streamer.order.decode import LaneDecoder, OrdinalsTogether
from streamer.order.hashing import TAG_GROUP, TAG_PIECE, Chunks, Flags, Integers, Words, fold, fold_each
from streamer.order.protocol import ALL_POSITIONS, Batches, Needs
from streamer.order.rank_split import RankSplit, real_positions
from streamer.order.schedule import piece_runs, run_needs
from streamer.order.spec import OrderSpec

# Most pieces that are ordered together: more would cost memory, and save no time.
_PIECES = 1 << 12


class EpochOrder:
    """The order of one epoch, a bijection from positions 0..n-1 to sample ordinals 0..n-1.

    Takes 16 bytes per chunk (24 without `chunk_first`), and time to hash the lanes that are asked for, but nothing per
    sample. Owned by one thread: the tables of a lane are filled at its first use.

    Args:
        spec: what fixes the order.
        chunk_samples: (M,) samples of each chunk, kept, not copied.
        epoch: number of the epoch, from 0.
        chunk_first: (M+1,) samples before each chunk, if the caller has them, which saves 8 bytes per chunk. None
            computes them.
        shift: position p is in lane (p + shift) mod L. Only a pass of a mix's member has a shift: its stream of passes
            goes round the lanes without a break. `needs` supposes that the shift is 0.
        chunk_words: (M,) the first 8 bytes of the chunks' keys, for cut="by_key", else None.

    Attributes:
        spec, epoch, shift, chunk_samples, chunk_first: the same.
        samples: n.
        origin: 0, the first position.

    Raises:
        ManifestError: there are no samples.
        ConfigError: a negative epoch, or shuffle="sample" over chunks of several samples.
    """

    origin = 0

    def __init__(
        self,
        spec: OrderSpec,
        chunk_samples: Integers,
        epoch: int,
        *,
        chunk_first: Integers | None = None,
        shift: int = 0,
        chunk_words: Words | None = None,
    ) -> None:
        self.spec = spec
        self.epoch = epoch
        self.shift = shift
        self.chunk_samples = chunk_samples
        self._chunk_words = chunk_words
        if chunk_first is None:
            chunk_first = np.zeros(len(chunk_samples) + 1, dtype=np.int64)
            np.cumsum(chunk_samples, out=chunk_first[1:])
        self.chunk_first = chunk_first
        if epoch < 0:
            raise ConfigError(f"epoch={epoch} is negative", field="epoch")
        if chunk_samples.sum() == 0:
            raise ManifestError(
                f"manifest {spec.manifest_digest} has no samples in {len(chunk_samples)} chunks; "
                "check the url and the selection",
                manifest=spec.manifest_digest,
            )
        if spec.shuffle == "sample" and (largest := int(chunk_samples.max())) > 1:
            raise ConfigError(
                f'shuffle="sample" needs a manifest with one sample per chunk; a chunk of '
                f"{spec.manifest_digest} has {largest}",
                field="shuffle",
            )
        self.samples = int(self.chunk_first[-1])
        self._cut: LaneCut | None = None

    def __repr__(self) -> str:
        spec = self.spec
        return (
            f"EpochOrder(epoch={self.epoch}, samples={self.samples}, shuffle={spec.shuffle!r}, "
            f"lanes={spec.lanes}, window={spec.window}, order_id={spec.order_id})"
        )

    def open_epoch(self, epoch: int, shift: int = 0) -> EpochOrder:
        """Returns the order of another epoch, which shares with this one what does not change between epochs.

        Raises:
            ConfigError: a negative epoch.
            ManifestError: there are no samples.
        """
        first = self.chunk_first
        words = self._chunk_words
        other = EpochOrder(self.spec, self.chunk_samples, epoch, chunk_first=first, shift=shift, chunk_words=words)
        if self.spec.cut != "redrawn" and self._cut is not None:
            other._cut = self._cut if shift == self.shift else self._cut.shift_lanes(self.chunk_samples, shift)
        return other

    @property
    def lanes(self) -> int:
        """The number of lanes, L."""
        return self.spec.lanes

    @property
    def block_samples(self) -> int:
        """Positions that one call of `ordinals` should have: its fixed cost is 0.7 ms (2 cores, 2026-11)."""
        return 4096

    @property
    def lane_opened(self) -> int:
        """Average number of samples of the chunks that are open together in a lane."""
        return self.spec.lane_window * self.samples // max(1, int(np.count_nonzero(self.chunk_samples)))

    def find_known(self, position: int) -> tuple[int, int]:
        """Returns `ALL_POSITIONS`: an epoch is fixed from the beginning."""
        return ALL_POSITIONS

    def ordinals(self, positions: Integers) -> Integers:
        """Returns the ordinals of the samples at some positions: (N,) int64.

        Args:
            positions: (N,) positions in any order, also repeated. Those from n on are padding and repeat the last
                samples of their lane.

        Raises:
            ConfigError: a negative position.
        """
        real = real_positions(np.asarray(positions, dtype=np.int64), self.samples, self.spec.lanes)
        if self.spec.shuffle == "none":
            return real
        return self._decoder.ordinals(self._places(real))

    def add_ordinals(self, positions: Integers, rows: Integers, together: OrdinalsTogether) -> None:
        """Adds the ordinals of the samples at some positions to those of other orders.

        Args:
            positions: (N,) positions of 0..n-1.
            rows: (N,) rows of `together` that they get.
            together: takes the ordinals; it may draw them later.

        Raises:
            ConfigError: a negative position, without shuffle.
        """
        draws = None if self.spec.shuffle == "none" else self._decoder.draws(self._places(positions))
        if draws is None:
            together.set(rows, self.ordinals(positions))
        else:
            together.draw(rows, draws)

    def _places(self, positions: Integers) -> Integers:
        """Returns the place of each position if all lanes are counted one after the other; fills these lanes."""
        lanes = (positions + self.shift) % self.spec.lanes
        self.fill(unique(lanes))
        places: Integers = self.lane_start[lanes] + positions // self.spec.lanes
        return places

    def repeats(self, positions: Integers) -> Flags:
        """Returns which positions are padding: (N,)."""
        padding: Flags = positions >= self.samples
        return padding

    def needs(self, split: RankSplit, run: Batches) -> list[Needs]:
        """Returns the chunks that a rank uses in a run of batches, an entry for each lane, or one without shuffle.

        The batches from first to last use of a chunk may be more than those that use it, never fewer.
        """
        if self.spec.shuffle == "none":
            share = slice(split.rank * split.per_rank, (split.rank + 1) * split.per_rank)
            return [self._make_needs(*run_needs(self.chunk_first, share, run, self.samples))]
        lanes = split.rank_lanes(run.first_position)
        self.fill(lanes)
        found = []
        for lane in lanes.tolist():
            length = int(self.lane_start[lane + 1] - self.lane_start[lane])
            ends = (run.first_position, run.stop_position)
            begin, end = (min(max(-(-(position - lane) // self.spec.lanes), 0), length) for position in ends)
            if begin < end:
                pieces, first, stop = piece_runs(self.deal, lane, (begin, end))
                first_batch = run.number(lane + self.spec.lanes * first)
                last_batch = run.number(lane + self.spec.lanes * (stop - 1))
                found.append(self._make_needs(self.piece_chunks[pieces], first_batch, last_batch))
        return found

    def chunks(self, ordinals: Integers) -> tuple[Integers, Integers]:
        """Returns the chunk of each of some samples, by ordinal, and its pass, which is the epoch: (N,) each."""
        chunks = np.searchsorted(self.chunk_first, ordinals, side="right") - 1
        return chunks, np.full(len(chunks), self.epoch, dtype=np.int64)

    def chunk_lanes(self, chunks: int) -> Integers:
        """Returns the lane of each of `chunks` chunks, (M,), or -1 for one without samples. Not for a redrawn cut."""
        return self.cut.chunk_lanes(chunks)

    def _make_needs(self, chunks: Chunks, first: Integers, last: Integers) -> Needs:
        return Needs(chunks, first, last, np.full(len(chunks), self.epoch, dtype=np.int64))

    # -------------------------------------------------------------- tables of the epoch

    @cached_property
    def lane_start(self) -> Integers:
        """Number of samples before each lane, and n: (L+1,)."""
        return lane_starts(self.samples, self.spec.lanes, self.shift)

    @property
    def cut(self) -> LaneCut:
        """The pieces of each lane; computed at the first use.

        Raises:
            ConfigError: cut="by_key" without the words of the chunks.
        """
        if self._cut is None:
            self._cut = cut_lanes(self.spec, self.chunk_samples, self.epoch, self.shift, chunk_words=self._chunk_words)
        return self._cut

    @cached_property
    def deal(self) -> Deal:
        """The groups of all lanes; only lanes that `fill` was called for can be asked for."""
        cut = self.cut
        # A lane not yet filled holds its start throughout, so that the prefix sum stays sorted.
        prefix = np.repeat(cut.start, np.append(np.diff(cut.piece), 1))
        return Deal(self.spec.lane_window, prefix, cut.piece, cut.start)

    @cached_property
    def piece_chunks(self) -> Chunks:
        """The chunk of each piece, through all lanes; 0 in lanes that `fill` was not called for."""
        return np.zeros(int(self.cut.piece[-1]), dtype=np.uint32)

    @cached_property
    def _filled(self) -> Flags:
        return np.zeros(self.spec.lanes, dtype=np.bool_)

    def fill(self, lanes: Integers) -> None:
        """Orders the pieces of some lanes for this epoch: fills `deal` and `piece_chunks`. Does so once for a lane."""
        cut = self.cut
        missing = lanes[~self._filled[lanes]]
        pieces = max(1, int(cut.piece[-1]) // self.spec.lanes)
        # Short lanes that are filled one by one cost 60 us each: 0.1 s with the 8 lanes of 200 members (2026-11-23).
        step = max(1, _PIECES // pieces)
        for first in range(0, len(missing), step):
            some = missing[first : first + step]
            number, chunks, sizes = cut.pieces(some, self.chunk_samples)
            arranged = np.argsort(fold_each(epoch_state(self.spec, self.epoch), chunks))
            if len(some) > 1:
                # 16-bit words are sorted by radix, ten times as fast as longer ones.
                arranged = arranged[np.argsort(number[arranged].astype(np.uint16), kind="stable")]
            before = np.searchsorted(number, np.arange(len(some)))
            places = np.arange(len(number)) + (cut.piece[some] - before)[number]
            lengths = np.diff(cut.start)[some]
            self.piece_chunks[places] = chunks[arranged]
            self.deal.prefix[places + 1] = (
                np.cumsum(sizes[arranged]) + (cut.start[some] - np.cumsum(lengths) + lengths)[number]
            )
            self._filled[some] = True

    # -------------------------------------------------------------- from places to ordinals

    @cached_property
    def _decoder(self) -> LaneDecoder:
        """Finds the samples at places of filled lanes."""
        lanes = np.arange(self.spec.lanes, dtype=np.uint64)
        group = fold(self.spec.seed, TAG_GROUP, self.epoch)
        piece = fold(self.spec.seed, TAG_PIECE, self.epoch)
        # A method would make a circle of references, which keeps the tables of finished epochs until a collection.
        start = partial(_piece_start, self.piece_chunks, self.cut, self.chunk_first)
        return LaneDecoder(self.deal, (fold_each(group, lanes), fold_each(piece, lanes)), start)


def _piece_start(
    piece_chunks: Chunks, cut: LaneCut, chunk_first: Integers, lanes: Integers, pieces: Integers
) -> Integers:
    """Returns the first ordinal of each piece; only the first chunk of a lane can begin before the lane."""
    chunk = piece_chunks[cut.piece[lanes] + pieces].astype(np.int64)
    head_chunk = cut.order[np.minimum(cut.begin[lanes], len(cut.order) - 1)].astype(np.int64)
    ordinals: Integers = chunk_first[chunk] + np.where(chunk == head_chunk, cut.head[lanes], 0)
    return ordinals
