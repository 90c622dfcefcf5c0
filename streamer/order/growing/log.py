"""The log of admissions: how many cohorts each round has added. It fixes the order of a growing dataset.

Round r trains the cohorts a(r-k)..a(r)-1, each sample once; a(r) cohorts are admitted when it begins, k is `reuse`.

Each admission has exactly k uses: cohort j is in [a(r-k), a(r)) for the k rounds that begin with the first one of
a(r) > j. So uses stay level. Let u_x be the uses of sample x so far. The p-th admission of x is before the (p+1)-th
of y, so it has as many rounds behind it or more; summed over p: u_x >= u_y - k. At the end of every round max - min
<= k, inside a round <= k + 1, and 0 after a pass whose uses are all made. This holds for every log.

Rounds that are planned from the rates of the first ones would need no log, but they wait: see docs/growing.md.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

import msgspec

from streamer.errors import ConfigError
from streamer.order.growing.cohorts import Cohorts


class Round(msgspec.Struct, frozen=True):
    """One round: one use of every sample of the cohorts in use.

    Attributes:
        number: from 0.
        start, stop: half-open positions in the endless stream of all rounds.
        begin, end: the cohorts that it trains, half-open.
    """

    number: int
    start: int
    stop: int
    begin: int
    end: int


class AdmissionLog:
    """The rounds that are known so far. `admit` adds one; known rounds never change.

    Args:
        cohorts: the cohorts of the dataset.
        reuse: k, number of rounds that each admitted cohort stays.
        least: smallest number of cohorts in a round: rounds of few batches would shuffle little.
        admitted: number of cohorts that each round has added, from round 0.

    Raises:
        ConfigError: `admitted` contains a round that is not possible.
    """

    def __init__(self, cohorts: Cohorts, reuse: int, least: int, admitted: Iterable[int] = ()) -> None:
        self.cohorts = cohorts
        self.reuse = reuse
        self.least = least
        # a(r), and the position at which round r begins; after the last one that of the next.
        self._admitted: list[int] = []
        self._starts: list[int] = [0]
        for number, added in enumerate(admitted):
            low, high = self._limits()
            if not low <= added <= high:
                raise ConfigError(
                    f"round {number} cannot admit {added} cohorts: {low} to {high} are possible; the log of admissions "
                    "is of other data, another reuse, or was changed",
                    field="grow",
                )
            self._append(added)
        if not self._admitted:
            self.admit(least)

    def __repr__(self) -> str:
        return f"AdmissionLog({len(self)} rounds, reuse={self.reuse}, admitted={self._end})"

    def __len__(self) -> int:
        return len(self._admitted)

    def __getitem__(self, number: int) -> Round:
        if not 0 <= number < len(self):
            raise IndexError(f"round {number} of {len(self)}")
        start, stop = self._starts[number : number + 2]
        return Round(
            number=number,
            start=start,
            stop=stop,
            begin=self._count_cohorts(number - self.reuse),
            end=self._count_cohorts(number),
        )

    @property
    def last(self) -> Round:
        """The last known round."""
        return self[len(self) - 1]

    @property
    def stop(self) -> int:
        """One past the last position of the known rounds."""
        return self._starts[-1]

    @property
    def next_begin(self) -> int:
        """The first cohort of the round after the known ones."""
        return self._count_cohorts(len(self) - self.reuse)

    @property
    def admitted(self) -> list[int]:
        """Number of cohorts that each known round has added, from round 0."""
        return [after - before for before, after in zip([0, *self._admitted], self._admitted, strict=False)]

    def find_round(self, position: int) -> Round:
        """Returns the round of a position of the stream.

        Raises:
            IndexError: the position is beyond the known rounds.
        """
        return self[bisect_right(self._starts, position) - 1]

    def admit(self, cohorts: int) -> Round:
        """Adds a round that admits so many new cohorts, and returns it.

        Fewer are admitted if the round would train more cohorts than a pass has, more if it would train fewer than
        `least` cohorts.
        """
        low, high = self._limits()
        # Fresh ones must come where too few are left in use, although the trainer waits for them.
        needed = self.least - (self._end - self.next_begin)
        self._append(min(max(cohorts, needed, low), high))
        return self.last

    def trainable(self, cohorts: int) -> int:
        """Returns the position up to which rounds train only the first `cohorts` cohorts."""
        return self._starts[bisect_right(self._admitted, cohorts)]

    def find_use_bounds(self, position: int) -> tuple[int, int]:
        """Returns bounds of the uses of any sample when the round of a position begins, at most `reuse` apart."""
        number = min(bisect_right(self._starts, position) - 1, len(self) - 1)
        per_pass = self.cohorts.per_pass
        least = 0
        highest = 0
        for first in range(0, self._count_cohorts(number - 1), per_pass):
            # Uses fall from cohort to cohort of a pass.
            least += self._uses(first + per_pass - 1, number)
            highest += self._uses(first, number)
        return least, min(highest, least + self.reuse)

    def _uses(self, cohort: int, number: int) -> int:
        """Returns how many rounds before `number` have trained a cohort."""
        return min(self.reuse, max(0, number - bisect_right(self._admitted, cohort)))

    def _limits(self) -> tuple[int, int]:
        """Returns how many cohorts the next round may add: it trains at least one, and none of a pass twice."""
        kept = self._end - self.next_begin
        return int(kept == 0), self.cohorts.per_pass - kept

    def _append(self, added: int) -> None:
        """Adds a round that admits `added` cohorts."""
        end = self._end + added
        size = self.cohorts.samples_before(end) - self.cohorts.samples_before(self.next_begin)
        # This order counts: another thread may look a position up meanwhile.
        self._starts.append(self.stop + size)
        self._admitted.append(end)

    @property
    def _end(self) -> int:
        """One past the last admitted cohort."""
        return self._count_cohorts(len(self) - 1)

    def _count_cohorts(self, number: int) -> int:
        """Returns a(r); 0 before round 0."""
        return self._admitted[number] if number >= 0 else 0


class KnownRounds:
    """The rounds that a worker knows: those of the batch that it makes, which the rank sends with each batch."""

    def __init__(self, cohorts: Cohorts) -> None:
        self.cohorts = cohorts
        self._rounds: list[Round] = []

    def set(self, rounds: Sequence[tuple[int, ...]]) -> None:
        """Sets the rounds of the next batch, each as the fields of `Round`."""
        self._rounds = [Round(*fields) for fields in rounds]

    def find_round(self, position: int) -> Round:
        """Returns the round of a position of the stream.

        Raises:
            IndexError: the round was not told.
        """
        for of in self._rounds:
            if of.start <= position < of.stop:
                return of
        raise IndexError(f"position {position} is in none of {self._rounds}")


Rounds = AdmissionLog | KnownRounds


def rounds_between(rounds: Rounds, first: int, last: int) -> list[Round]:
    """Returns the rounds of the positions first..last.

    Raises:
        IndexError: one of them is not known.
    """
    found = [rounds.find_round(first)]
    while found[-1].stop <= last:
        found.append(rounds.find_round(found[-1].stop))
    return found
