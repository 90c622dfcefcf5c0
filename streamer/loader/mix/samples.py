"""Makes the samples of a mix, each by the maker and the readers of its member. Imports no torch.

Samples are numbered by codes, see `streamer.order.mix.codes`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.client.chunk_reader import ChunkReader
from streamer.loader.batch.placement import Rows
from streamer.loader.contracts import BatchSource
from streamer.loader.mix.plans import Integers, MemberRecipe, Members, MixGeometry, MixPlans
from streamer.loader.samples.maker import CachedBytes, SampleLocation, SampleMaker
from streamer.loader.samples.row_reader import RowReader
from streamer.order.mix import MixSpec, SampleCodes
from streamer.order.plan import LastBatch


class MixRecipe(msgspec.Struct, frozen=True, kw_only=True):
    """All that a worker process needs to make the samples of a mix.

    Attributes:
        members: in order.
        geometry: order and batches.
        roots: cache folders.
    """

    members: tuple[MemberRecipe, ...]
    geometry: MixGeometry
    roots: tuple[Path, ...]

    @property
    def global_batch(self) -> int:
        """Samples of a batch over all ranks."""
        return self.geometry.global_batch

    @property
    def last_batch(self) -> LastBatch:
        """What becomes of an incomplete last batch."""
        return self.geometry.last_batch

    def open(self) -> MixReader:
        """Opens the manifests in this process."""
        return MixReader(self)


class MixLocation(SampleLocation, frozen=True):
    """The location of a sample of a mix.

    Attributes:
        ordinal: the code.
        member: number of the member.
        turn: its pass, less the member's first pass of the epoch.
        own: the location in the member, with the ordinal in the member's manifest.
    """

    member: int
    turn: int
    own: SampleLocation


class MemberMaker:
    """Makes the samples of one member.

    Args:
        members: all of them.
        number: of this one.
        recipe: of this one.
        reader: of the cache folders.
    """

    def __init__(self, members: Members, number: int, recipe: MemberRecipe, reader: ChunkReader) -> None:
        manifest = members.each[number].manifest
        self.content = CachedBytes(manifest, reader, members.first_chunks[number])
        self.maker = SampleMaker(manifest, self.content, recipe.rules, members.each[number].number)
        self.reader = RowReader(self.maker, self.content)


class MixMaker:
    """Turns codes into samples. Used by one thread at a time.

    Args:
        members: opened.
        recipe: of the mix.
    """

    def __init__(self, members: Members, recipe: MixRecipe) -> None:
        self._members = members
        self._recipe = recipe
        self._spec: MixSpec = recipe.geometry.spec
        self._codes = SampleCodes([member.samples for member in members.each])
        self._reader = ChunkReader(recipe.roots)
        # Made at their first sample: a rank of a mix with many members may use few of them.
        self._makers: dict[int, MemberMaker] = {}
        self._first: tuple[int, Sequence[int]] = (-1, ())
        self._reading = 0

    def of(self, member: int) -> MemberMaker:
        """The maker of one member."""
        if member not in self._makers:
            self._makers[member] = MemberMaker(self._members, member, self._recipe.members[member], self._reader)
        return self._makers[member]

    def spent_reading(self, started: int) -> None:
        """Adds the nanoseconds since `started` to the time of reading."""
        self._reading += time.perf_counter_ns() - started

    def stage_nanoseconds(self) -> tuple[int, int, int]:
        """Read, decode, transform: nanoseconds so far, over all members."""
        spent = [member.maker.stage_nanoseconds() for member in self._makers.values()]
        read, decode, transform = (sum(column) for column in zip((self._reading, 0, 0), *spent, strict=True))
        return read, decode, transform

    def places(self, codes: Integers) -> list[MixLocation]:
        """Locates samples by their codes."""
        found: dict[int, MixLocation] = {}
        numbers, turns, members = self._codes.ordinals(codes), self._codes.turns(codes), self._codes.members(codes)
        arranged = members.argsort(kind="stable")
        cuts = (np.flatnonzero(np.diff(members[arranged])) + 1).tolist()
        for start, stop in pairwise((0, *cuts, len(codes))):
            mine = arranged[start:stop]
            member = int(members[mine[0]])
            places = self.of(member).maker.places(self._members.each[member].to_manifest(numbers[mine]))
            columns = (mine.tolist(), codes[mine].tolist(), turns[mine].tolist(), places)
            for index, code, turn, own in zip(*columns, strict=True):
                found[index] = MixLocation(own.sample, own.start, own.stop, code, own.chunk, member, turn, own)
        return [found[index] for index in range(len(codes))]

    def make(self, epoch: int, place: SampleLocation) -> object:
        """Reads, opens, decodes and transforms one sample; see `SampleMaker.make`."""
        assert isinstance(place, MixLocation)
        return self.of(place.member).maker.make(self.run(epoch, place), place.own)

    def run(self, epoch: int, place: MixLocation) -> int:
        """The pass of the member that a sample of this epoch belongs to; its random numbers depend on it."""
        if self._first[0] != epoch:
            self._first = epoch, self._spec.first_passes(epoch)
        return self._first[1][place.member] + place.turn


class MixReader(BatchSource):
    """Makes the samples of one rank's batches, in a worker process.

    Args:
        recipe: of the mix.

    Raises:
        ManifestError: there is no manifest at the recipe's path of a member.
    """

    def __init__(self, recipe: MixRecipe) -> None:
        self._recipe = recipe
        members = Members([member.open() for member in recipe.members])
        self._plans = MixPlans(recipe.geometry, members)
        self._maker = MixMaker(members, recipe)
        self._codes = SampleCodes([member.samples for member in members.each])
        self._places: list[MixLocation] = []
        self._begun: set[int] = set()

    def __repr__(self) -> str:
        geometry = self._recipe.geometry
        return f"MixReader(rank {geometry.rank} of {geometry.world_size}, {len(self._recipe.members)} members)"

    def batch(self, epoch: int, batch: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """This rank's samples of one batch: codes, and which are repeats."""
        index = self._plans.plan(epoch).batch(batch)
        return index.ordinals, index.repeated

    def load(self, epoch: int, ordinal: int) -> object:
        """One sample from its code."""
        return self._maker.make(epoch, self._locate(ordinal))

    @property
    def is_mixed(self) -> bool:
        """See BatchSource.is_mixed."""
        return True

    def first_of_each(self, ordinals: npt.NDArray[np.int64]) -> dict[str, int]:
        """The names of their members, each with the index of its first sample."""
        first: dict[int, int] = {}
        for index, number in enumerate(self._codes.members(ordinals).tolist()):
            first.setdefault(number, index)
        names = self._recipe.geometry.spec.members
        return {names[number].name: index for number, index in first.items()}

    @property
    def draws(self) -> bool:
        """Whether user code runs for a sample of any member."""
        return any(self._maker.of(number).maker.draws for number in range(len(self._recipe.members)))

    @property
    def user_code(self) -> tuple[object, ...]:
        """Transforms and decoders of all members."""
        return tuple(code for member in self._recipe.members for code in (member.rules.transform, member.rules.decode))

    @property
    def takes_rows(self) -> bool:
        """Whether decoders or the transform of any member can write to rows."""
        return any(self._maker.of(number).maker.takes_rows for number in range(len(self._recipe.members)))

    def begin(self, ordinals: npt.NDArray[np.int64], rows: Rows | None, at: Callable[[int], None]) -> None:
        """Locates the samples of a batch; each member's readers read theirs, see `SampleReader.begin`.

        Args:
            ordinals: int64 (samples,), codes.
            rows: the rows to which arrays may be written; None: no rows.
            at: called with the index of the first sample of each chunk that is read.

        Raises:
            ChunkUnreadableError: the bytes of a sample are missing or wrong.
        """
        started = time.perf_counter_ns()
        self._places = self._maker.places(ordinals)
        # A member without a sample in this batch begins too: it releases the memory of the last one.
        found: dict[int, dict[int, SampleLocation]] = {member: {} for member in self._begun}
        for index, place in enumerate(self._places):
            found.setdefault(place.member, {})[index] = place.own
        for member, places in found.items():
            self._maker.of(member).reader.begin(places, rows if places else None, at)
        self._begun = {member for member, places in found.items() if places}
        self._maker.spent_reading(started)

    def load_at(self, epoch: int, ordinal: int, index: int) -> object:
        """One sample for an index of the current batch; see `SampleMaker.make`."""
        place = self._places[index]
        if place.ordinal != ordinal:
            place = self._locate(ordinal)
        return self._maker.of(place.member).reader.load_at(self._maker.run(epoch, place), place.own, index)

    def _locate(self, code: int) -> MixLocation:
        return self._maker.places(np.array([code], np.int64))[0]

    def stage_nanoseconds(self) -> tuple[int, int, int]:
        """Read, decode, transform: nanoseconds since it was opened, over all members."""
        return self._maker.stage_nanoseconds()

    def close(self) -> None:
        """Does nothing: no descriptor and no mapping is kept between samples."""
