"""The meaning of the numbers that the loader carries for samples.

Plans, workers and messages carry a sample as one int64, its code. Of a dataset alone that is the ordinal in its
manifest. In a mix it has the member and the pass as well, see `streamer.order.mix.codes`: a sample that comes twice in
an epoch has two codes, so that each use gets random numbers of its own. A growing dataset has codes as a mix of one
member has them, with a number for each use instead of the pass. Where documents are packed, plans have codes of rows,
workers and messages those of documents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.batches.samples.opened import Members
from streamer.order.spec import OrderSpec

if TYPE_CHECKING:
    from streamer.batches.rows.planned import Pieces
    from streamer.order.mix.spec import MixSpec

Integers = npt.NDArray[np.int64]


class Uses(msgspec.Struct, frozen=True, eq=False):
    """The samples of one member among some codes.

    Attributes:
        member: its number.
        rows: (N,) their places among the codes.
        ordinals: (N,) their ordinals in the manifest.
        runs: (N,) what their random numbers depend on, see `SampleLocation`.
    """

    member: int
    rows: Integers
    ordinals: Integers
    runs: list[int]


class StreamCodes:
    """Reads the codes of one stream."""

    def __init__(self, spec: OrderSpec | MixSpec, members: Members, *, growing: bool = False) -> None:
        self._members = members
        self._mix = None if isinstance(spec, OrderSpec) else spec
        # None: codes are ordinals in the manifest.
        self._codes = None
        if self._mix is not None or growing:
            # Only here: one dataset alone does not load the modules of a mix.
            from streamer.order.mix.codes import SampleCodes

            self._codes = SampleCodes(members.samples)
        self._packed = isinstance(spec, OrderSpec) and spec.rows is not msgspec.UNSET
        self._seeds = [spec.seed] if isinstance(spec, OrderSpec) else [member.order.seed for member in spec.members]
        self._first: tuple[int, Sequence[int]] = (-1, ())

    @property
    def are_ordinals(self) -> bool:
        """Whether they are ordinals in the only manifest, and the run is the epoch."""
        return self._codes is None

    def of(self, ordinals: Integers) -> Integers:
        """The codes of what the order calls its samples; of rows, what the order calls them."""
        if self._codes is not None or self._packed:
            return ordinals
        return self._members.each[0].to_manifest(ordinals)

    def documents(self, epoch: int, rows: Integers) -> tuple[Integers, Pieces]:
        """The documents of some rows: their codes, and which tokens of them are in each row.

        Args:
            epoch: of the rows.
            rows: (N,) what the order calls them.
        """
        from streamer.batches.rows.planned import Pieces

        members, numbers, turns = self._parts(rows)
        found = []
        pieces = []
        for member, number, turn in zip(members.tolist(), numbers, turns.tolist(), strict=True):
            data = self._members.each[member]
            assert data.rows is not None, "rows are asked for where documents are packed"
            run = self._content(epoch, member, turn)
            pieces.append(part := data.rows.pieces(number, self._seeds[member], run))
            if self._codes is None:
                found.append(data.to_manifest(part.document))
            else:
                same = np.ones_like(part.document)
                found.append(self._codes.encode(member * same, turn * same, part.document))
        return np.concatenate(found), Pieces.joined(pieces)

    def costs(self, epoch: int, rows: Integers, coefficients: tuple[int, int]) -> Integers:
        """Returns the costs of some rows, or samples that are not packed: (N,).

        Args:
            epoch: of the rows.
            rows: (N,) what the order calls them.
            coefficients: of the tokens of a document or sample, and of their square.
        """
        members, numbers, turns = self._parts(rows)
        found = np.empty(len(rows), np.int64)
        # A member has a few passes in an epoch.
        for member, turn in sorted(set(zip(members.tolist(), turns.tolist(), strict=True))):
            mine = (members == member) & (turns == turn)
            run = self._content(epoch, member, turn)
            data = self._members.each[member]
            found[mine] = data.costs(numbers[mine], self._seeds[member], run, coefficients)
        return found

    def uses(self, epoch: int, codes: Integers) -> Iterator[Uses]:
        """Yields the samples that codes stand for in an epoch, by member; for codes that are not ordinals."""
        assert self._codes is not None
        numbers = self._codes.ordinals(codes)
        turns = self._codes.turns(codes)
        members = self._codes.members(codes)
        arranged = members.argsort(kind="stable")
        cuts = (np.flatnonzero(np.diff(members[arranged])) + 1).tolist()
        for start, stop in pairwise((0, *cuts, len(codes))):
            rows = arranged[start:stop]
            member = int(members[rows[0]])
            ordinals = self._members.each[member].to_manifest(numbers[rows])
            yield Uses(member, rows, ordinals, (turns[rows] + self._first_run(epoch, member)).tolist())

    def members(self, codes: Integers) -> Integers:
        """Returns the number of the member of each code: (N,)."""
        return np.zeros_like(codes) if self._codes is None else self._codes.members(codes)

    def locate(self, code: int) -> tuple[int, int]:
        """Number of the member, and of the sample in its selection."""
        if self._codes is None:
            return 0, self._members.each[0].number(code)
        codes = np.array([code], np.int64)
        return int(self._codes.members(codes)[0]), int(self._codes.ordinals(codes)[0])

    def _parts(self, rows: Integers) -> tuple[Integers, Integers, Integers]:
        """Returns member, number in it and pass, from the first one of the epoch on, of what the order calls rows."""
        if self._codes is None:
            return np.zeros_like(rows), rows, np.zeros_like(rows)
        codes = type(self._codes)(self._members.order_samples)
        return codes.members(rows), codes.ordinals(rows), codes.turns(rows)

    def _content(self, epoch: int, member: int, turn: int) -> int:
        """Returns the epoch, or pass, whose documents a row has."""
        if self._codes is None:
            return epoch
        # Of a growing dataset the last bit is that of the pass (`RoundTables`): the uses of a row in one pass have the
        # same documents, or a document would be used more often than another one.
        return turn % 2 if self._mix is None else turn + self._first_run(epoch, member)

    def _first_run(self, epoch: int, member: int) -> int:
        """The first pass of a member in an epoch of a mix; the uses of a growing dataset count over all epochs."""
        if self._mix is None:
            return 0
        if self._first[0] != epoch:
            self._first = epoch, self._mix.first_passes(epoch)
        return self._first[1][member]
