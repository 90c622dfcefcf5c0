"""The meaning of the numbers that the loader carries for samples.

Plans, workers and messages carry a sample as one int64, its code. Of a dataset alone that is the ordinal in its
manifest. In a mix it has the member and the pass as well, see `streamer.order.mix.codes`: a sample that comes twice in
an epoch has two codes, so that each use gets random numbers of its own. A growing dataset has codes as a mix of one
member has them, with a number for each use instead of the pass. Where documents are packed, plans have codes of rows,
workers and messages those of documents. `streamer.order.kinds` has the codes of each kind of order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from streamer.batches.samples.opened import Members
from streamer.order.kinds import find_orders
from streamer.order.kinds.kind import Uses

if TYPE_CHECKING:
    from streamer.batches.rows.pieces import Pieces
    from streamer.order.state import AnySpec

Integers = npt.NDArray[np.int64]


class StreamCodes:
    """Reads the codes of one stream."""

    def __init__(self, spec: AnySpec, members: Members) -> None:
        self._members = members
        self._book = find_orders(spec).codes(members.each)
        self._seeds = [order.seed for order in spec.orders]

    def of(self, ordinals: Integers) -> Integers:
        """The codes of what the order calls its samples; of rows, what the order calls them."""
        return self._members.each[0].rows.codes(self._book, ordinals)

    def documents(self, epoch: int, rows: Integers) -> tuple[Integers, Pieces]:
        """The documents of some rows: their codes, and which tokens of them are in each row.

        Args:
            epoch: of the rows.
            rows: (N,) what the order calls them.
        """
        from streamer.batches.rows.pieces import Pieces

        members, numbers, turns = self._parts(rows)
        found = []
        pieces = []
        for member, number, turn in zip(members.tolist(), numbers, turns.tolist(), strict=True):
            run = self._book.content(epoch, member, turn)
            pieces.append(part := self._members.each[member].rows.pieces(number, self._seeds[member], run))
            same = np.ones_like(part.document)
            found.append(self._book.encode(member * same, turn * same, part.document))
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
            run = self._book.content(epoch, member, turn)
            data = self._members.each[member]
            found[mine] = data.costs(numbers[mine], self._seeds[member], run, coefficients)
        return found

    def uses(self, epoch: int, codes: Integers) -> Sequence[Uses]:
        """Returns the samples that codes stand for in an epoch, by member."""
        return self._book.uses(epoch, codes)

    def members(self, codes: Integers) -> Integers:
        """Returns the number of the member of each code: (N,)."""
        return self._book.members(codes)

    def first_of_each(self, codes: Integers) -> dict[int, int]:
        """Returns the members of the samples of a batch, each with the place of its first sample."""
        return self._book.first_of_each(codes)

    def locate(self, code: int) -> tuple[int, int]:
        """Number of the member, and of the sample in its selection."""
        return self._book.locate(code)

    def _parts(self, rows: Integers) -> tuple[Integers, Integers, Integers]:
        """Returns member, number in it and pass of what the order calls rows."""
        return self._book.parts(rows, self._members.order_samples)
