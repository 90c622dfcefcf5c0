"""Codes that have the member and the use of a sample: of a mix, and of a growing dataset."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from streamer.order.hashing import Integers
from streamer.order.kinds.kind import CodeBook, Selected, Uses
from streamer.order.mix.codes import SampleCodes


class MemberCodes(CodeBook):
    """Codes of several members, or of several uses: a sample that comes twice has two codes."""

    def __init__(self, members: Sequence[Selected]) -> None:
        self._members = members
        self._codes = SampleCodes([member.samples for member in members])

    @abstractmethod
    def first_run(self, epoch: int, member: int) -> int:
        """Returns what is added to the pass of a code, so that it counts over all epochs."""

    def carry(self, samples: Integers) -> Integers:
        """See `CodeBook`: the order has codes."""
        return samples

    def encode(self, members: Integers, turns: Integers, numbers: Integers) -> Integers:
        """See `CodeBook`."""
        return self._codes.encode(members, turns, numbers)

    def members(self, codes: Integers) -> Integers:
        """See `CodeBook`."""
        return self._codes.members(codes)

    def first_of_each(self, codes: Integers) -> dict[int, int]:
        """See `CodeBook`."""
        first: dict[int, int] = {}
        for place, number in enumerate(self._codes.members(codes).tolist()):
            first.setdefault(number, place)
        return first

    def locate(self, code: int) -> tuple[int, int]:
        """See `CodeBook`."""
        codes = np.array([code], np.int64)
        return int(self._codes.members(codes)[0]), int(self._codes.ordinals(codes)[0])

    def uses(self, epoch: int, codes: Integers) -> Sequence[Uses]:
        """See `CodeBook`."""
        numbers = self._codes.ordinals(codes)
        turns = self._codes.turns(codes)
        members = self._codes.members(codes)
        arranged = members.argsort(kind="stable")
        cuts = (np.flatnonzero(np.diff(members[arranged])) + 1).tolist()
        found = []
        for start, stop in pairwise((0, *cuts, len(codes))):
            rows = arranged[start:stop]
            member = int(members[rows[0]])
            ordinals = self._members[member].to_manifest(numbers[rows])
            found.append(Uses(member, rows, ordinals, (turns[rows] + self.first_run(epoch, member)).tolist()))
        return found

    def parts(self, rows: Integers, counts: Sequence[int]) -> tuple[Integers, Integers, Integers]:
        """See `CodeBook`; passes count from the first one of the epoch on."""
        codes = SampleCodes(counts)
        return codes.members(rows), codes.ordinals(rows), codes.turns(rows)
