"""Makes a rank's samples in a worker process: the recipe that is sent, and the reader that it opens there.

The loader makes the recipe (`loader/rank/rank_stream.py`). Each maker of batches opens it, in a worker
(`batches/workers/worker.py`) or in the trainer.

Imports no torch: without it a worker starts in a tenth of the time, with a fifth of the memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from streamer.batches.batch.placement import NO_SLOT, Rows
from streamer.batches.rows.options import ROW_COST
from streamer.batches.samples.cached_bytes import CachedBytes
from streamer.batches.samples.maker import Integers, RowSource, SampleLocation, SampleMaker
from streamer.batches.samples.opened import Members
from streamer.batches.samples.plans import BatchRecipe, Plans, StreamCodes
from streamer.batches.samples.row_reader import RowReader
from streamer.client.chunk_reader import ChunkReader
from streamer.order.kinds import find_orders
from streamer.order.kinds.leveling import find_level

if TYPE_CHECKING:
    from streamer.batches.rows.pieces import Pieces


class SampleRecipe(BatchRecipe, frozen=True, kw_only=True):
    """All that a worker process needs to make a rank's samples; see `BatchRecipe` for its attributes."""

    def open(self) -> StreamReader:
        """Opens the manifests in this process, and returns what makes the samples; errors as of `StreamReader`."""
        return StreamReader(self)


class StreamMaker:
    """Makes samples from their codes, each by the maker of its member. Used by one thread at a time.

    Args:
        recipe: what decides the rank's batches.
        members: the opened datasets of the recipe.

    Attributes:
        codes: makes and reads the codes of the stream.
    """

    def __init__(self, recipe: BatchRecipe, members: Members) -> None:
        self._recipe = recipe
        self._members = members
        self.codes = StreamCodes(recipe.spec, members)
        self._chunks = ChunkReader(recipe.roots)
        # Made at their first sample: a rank of a mix with many members may use few of them.
        self._readers: dict[int, RowReader] = {}
        self._reading = 0

    def open_reader(self, member: int) -> RowReader:
        """Returns the reader of the samples of one member, which is opened at its first use.

        Raises:
            ConfigError, ManifestError, ManifestVersionError, ManifestCorruptError: see `SampleMaker`.
        """
        if member not in self._readers:
            own = self._members.each[member]
            content = CachedBytes(own.manifest, self._chunks, self._members.first_chunks[member])
            rules = self._recipe.members[member].rules
            starts = self._members.first_chunks_of_parts[len(self._members.each) :]
            joins: list[RowSource] = [
                join.reader(CachedBytes(join.manifest, self._chunks, start))
                for (number, join), start in zip(self._members.joins, starts, strict=False)
                if number == member
            ]
            self._readers[member] = RowReader(
                SampleMaker(manifest=own.manifest, content=content, rules=rules, number=own.number, joins=joins),
                content,
            )
        return self._readers[member]

    def every(self) -> list[SampleMaker]:
        """Returns the makers of all members, and so opens the readers of all.

        Raises:
            ConfigError, ManifestError, ManifestVersionError, ManifestCorruptError: see `SampleMaker`.
        """
        return [self.open_reader(number).maker for number in range(len(self._recipe.members))]

    def add_reading_time(self, started: int) -> None:
        """Adds the time since `started` (perf_counter nanoseconds) to the time of reading."""
        self._reading += time.perf_counter_ns() - started

    def stage_nanoseconds(self) -> tuple[int, int, int]:
        """Returns the nanoseconds of reading, decoding and transforming so far, over all members."""
        spent = [reader.maker.stage_nanoseconds() for reader in self._readers.values()]
        read, decode, transform = (sum(column) for column in zip((self._reading, 0, 0), *spent, strict=True))
        return read, decode, transform

    def places(self, epoch: int, codes: Integers) -> Sequence[SampleLocation]:
        """Locates samples by their codes; returns their locations in the order of the codes.

        Raises:
            ChunkUnreadableError, CacheError: a recoded chunk cannot be read, see `SampleMaker.places`.
        """
        every = self.codes.uses(epoch, codes)
        if len(every) == 1:
            # The ordinals of a single member are in the order of the codes.
            return self.open_reader(every[0].member).maker.places(
                every[0].ordinals, codes, every[0].runs, every[0].member
            )
        found: dict[int, SampleLocation] = {}
        for uses in every:
            places = self.open_reader(uses.member).maker.places(uses.ordinals, codes[uses.rows], uses.runs, uses.member)
            found |= zip(uses.rows.tolist(), places, strict=True)
        return [found[index] for index in range(len(codes))]

    def make(self, place: SampleLocation) -> object:
        """Reads, opens, decodes and transforms one sample; see `SampleMaker.make`."""
        return self.open_reader(place.member).maker.make(place)


class StreamReader:
    """Makes the samples of one rank's batches, in a worker process or in the rank itself. Used by one thread at a time.

    For each batch the caller asks `batch` for its codes, then calls `begin`, then `load_at` for each sample.

    Args:
        recipe: what decides the rank's batches.

    Raises:
        ManifestError, ConfigError: as `MemberRecipe.open`.
    """

    def __init__(self, recipe: BatchRecipe) -> None:
        self._recipe = recipe
        members = Members([member.open() for member in recipe.members])
        self._rounds = find_orders(recipe.spec).open_rounds(members.each)
        self._plans = Plans(recipe, members, self._rounds)
        self._maker = StreamMaker(recipe, members)
        self._places: Sequence[SampleLocation] = ()
        # Readers of the members with samples in the running batch.
        self._readers: dict[int, RowReader] = {}

    def __repr__(self) -> str:
        recipe = self._recipe
        names = ", ".join(member.manifest_path.name for member in recipe.members[:4])
        return f"StreamReader(rank {recipe.rank} of {recipe.world_size}, {len(recipe.members)} members: {names})"

    def set_rounds(self, rounds: Sequence[tuple[int, ...]]) -> None:
        """Sets the rounds of the next batch of a growing dataset, each as the fields of `Round`. Others ignore them."""
        self._rounds.set(rounds)

    def batch(self, epoch: int, batch: int) -> tuple[Integers, npt.NDArray[np.bool_]]:
        """Returns the codes of this rank's samples, or rows, of one batch, and which of them are repeats: (N,) each.

        A repeat fills up an incomplete last batch.
        """
        index = self._plans.plan(epoch).batch(batch)
        return self._maker.codes.encode(index.ordinals), index.repeated

    @property
    def row_cost(self) -> tuple[int, int]:
        """The pair (a, b) in the cost a x n + b x n**2 of a document of n tokens in a row.

        It is that of `balance=`, or `ROW_COST` without it.
        """
        return find_level(self._recipe.spec.balance).coefficients(ROW_COST)

    def documents(self, epoch: int, rows: Integers) -> tuple[Integers, Pieces]:
        """Returns the documents of some rows: their codes, (T,), and which tokens of them are in each row."""
        return self._maker.codes.documents(epoch, rows)

    def load(self, epoch: int, ordinal: int) -> object:
        """Makes one sample from its code (`ordinal`), outside of a batch; errors as of `SampleMaker.make`."""
        return self._maker.make(self._locate(epoch, ordinal))

    def first_of_each(self, ordinals: Integers) -> dict[str, int]:
        """Returns the names of the members of a batch, each with the index of its first sample.

        The name of a dataset that is not in a mix is "".
        """
        first = self._maker.codes.first_of_each(ordinals)
        return {self._recipe.members[number].rules.member: index for number, index in first.items()}

    @property
    def draws(self) -> bool:
        """Whether user code that may draw random numbers runs for a sample of any member."""
        return any(maker.draws for maker in self._maker.every())

    @property
    def user_code(self) -> tuple[object, ...]:
        """Transforms and rules of decoding of all members."""
        return tuple(code for member in self._recipe.members for code in (member.rules.transform, member.rules.decode))

    @property
    def takes_rows(self) -> bool:
        """Whether decoders or the transform of any member can write to rows of the slot."""
        return any(maker.takes_rows for maker in self._maker.every())

    def begin(
        self, epoch: int, ordinals: Integers, rows: Rows, at: Callable[[int], None], *, documents: bool = False
    ) -> None:
        """Begins a batch, whose samples `load_at` makes: locates them, and reads raw arrays and raw bytes to the slot.

        Args:
            epoch: Epoch of the batch.
            ordinals: int64 (samples,), codes of the samples.
            rows: Rows of the slot to which arrays may be written.
            at: called with the index of the first sample of each chunk that is read.
            documents: Whether the samples are documents of packed rows. They are all read here then, chunk by chunk, to
                memory of their own.

        Raises:
            ChunkUnreadableError: the bytes of a sample are missing or wrong.
        """
        started = time.perf_counter_ns()
        self._places = self._maker.places(epoch, ordinals)
        by_member: dict[int, dict[int, SampleLocation]]
        if len(self._recipe.members) == 1:
            by_member = {0: dict(enumerate(self._places))}
        else:
            # A member that had samples in the batch before, and has none in this one, ends that one.
            by_member = {member: {} for member in self._readers}
            for index, place in enumerate(self._places):
                by_member.setdefault(place.member, {})[index] = place
        for member, places in by_member.items():
            reader = self._maker.open_reader(member)
            if documents:
                reader.begin_apart(places, at)
            else:
                reader.begin(places, rows if places else NO_SLOT, at)
        self._readers = {member: self._maker.open_reader(member) for member, places in by_member.items() if places}
        self._maker.add_reading_time(started)

    def load_at(self, epoch: int, ordinal: int, index: int) -> object:
        """Makes one sample for an index of the current batch; errors as of `SampleMaker.make`.

        Args:
            epoch: Epoch of the batch.
            ordinal: Code of the sample. It may be another sample of the batch than `begin` got for the index.
            index: Index in the batch, by which rows and bytes that were read are found.
        """
        place = self._places[index]
        if place.code != ordinal:
            place = self._locate(epoch, ordinal)
        return self._readers[place.member].load_at(place, index)

    def _locate(self, epoch: int, code: int) -> SampleLocation:
        return self._maker.places(epoch, np.array([code], np.int64))[0]

    def stage_nanoseconds(self) -> tuple[int, int, int]:
        """Returns the nanoseconds of reading, decoding and transforming since it was opened, over all members."""
        return self._maker.stage_nanoseconds()
