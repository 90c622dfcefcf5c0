"""Keeps the log of admissions, which says how many cohorts each round adds, and so fixes a growing dataset's order.

`loader/kinds/growing/` admits cohorts and sends rounds to workers, which keep them as `KnownRounds`
(`order/kinds/growing.py`). `order/growing/order.py` looks positions up, and a state keeps the log.

Round r trains the cohorts a(r-k)..a(r)-1, each sample once: a(r) is the number of cohorts that are admitted when the
round begins, and k is `reuse`.

Each admitted cohort has exactly k uses: cohort j is in [a(r-k), a(r)) for the k rounds from the first one with a(r) > j
on. So uses stay level. Let u_x be the uses of sample x so far. The p-th admission of x is before the (p+1)-th of y, so
it has as many rounds behind it or more; summed over p: u_x >= u_y - k. So the uses of two samples differ by k at most
at the end of every round, by k + 1 at most inside a round, and by 0 after a pass whose uses are all made. This holds
for every log.

Rounds that are planned from the rates of the first ones would need no log, but the trainer would wait for them: see
docs/growing.md.
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
        number: number of the round, from 0.
        start, stop: half-open positions in the endless stream of all rounds.
        begin, end: half-open numbers of the cohorts that it trains.
    """

    number: int
    start: int
    stop: int
    begin: int
    end: int


class AdmissionLog:
    """The rounds that are known so far, at least one. `admit` adds one. Known rounds never change.

    Args:
        cohorts: the cohorts of the dataset.
        reuse: number of rounds that train each admitted cohort.
        least: smallest number of cohorts of a round: rounds of few batches would shuffle little.
        admitted: number of cohorts that each round has added, from round 0 on; if it is empty, round 0 adds `least`.

    Raises:
        ConfigError: `admitted` contains a round that is not possible.
    """

    def __init__(self, cohorts: Cohorts, reuse: int, least: int, admitted: Iterable[int] = ()) -> None:
        self.cohorts = cohorts
        self.reuse = reuse
        self.least = least
        # Both have an entry per round: a(r), and the position at which it begins; at the end, that of the next round.
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
        """The position one past the last of the known rounds."""
        return self._starts[-1]

    @property
    def next_begin(self) -> int:
        """The first cohort of the round after the known ones."""
        return self._count_cohorts(len(self) - self.reuse)

    @property
    def admitted(self) -> list[int]:
        """Number of cohorts that each known round has added, from round 0 on."""
        return [after - before for before, after in zip([0, *self._admitted], self._admitted, strict=False)]

    def find_round(self, position: int) -> Round:
        """Returns the round that has a position of the stream.

        Raises:
            IndexError: the position is beyond the known rounds.
        """
        return self[bisect_right(self._starts, position) - 1]

    def admit(self, cohorts: int) -> Round:
        """Adds a round that admits `cohorts` new cohorts, and returns it.

        It admits fewer if it would train more cohorts than a pass has, and more if it would train fewer than `least`.
        """
        low, high = self._limits()
        # If too few cohorts are left in use, new ones must come, although the trainer waits for them.
        needed = self.least - (self._end - self.next_begin)
        self._append(min(max(cohorts, needed, low), high))
        return self.last

    def trainable(self, cohorts: int) -> int:
        """Returns the position up to which known rounds train only the first `cohorts` cohorts."""
        return self._starts[bisect_right(self._admitted, cohorts)]

    def find_use_bounds(self, position: int) -> tuple[int, int]:
        """Returns the least and the most uses that any sample may have when the round of a position begins.

        They are at most `reuse` apart. Behind the known rounds, the last one counts.
        """
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
        """Returns the least and the most cohorts that the next round may add: it trains from one to all of a pass."""
        kept = self._end - self.next_begin
        return int(kept == 0), self.cohorts.per_pass - kept

    def _append(self, added: int) -> None:
        """Adds a round that admits `added` cohorts."""
        end = self._end + added
        size = self.cohorts.samples_before(end) - self.cohorts.samples_before(self.next_begin)
        # The start comes before the cohorts: another thread may look a position up meanwhile.
        self._starts.append(self.stop + size)
        self._admitted.append(end)

    @property
    def _end(self) -> int:
        """Number of cohorts admitted so far."""
        return self._count_cohorts(len(self) - 1)

    def _count_cohorts(self, number: int) -> int:
        """Returns the number of cohorts that are admitted when a round begins, a(r); 0 before round 0."""
        return self._admitted[number] if number >= 0 else 0


class KnownRounds:
    """The rounds that a worker knows: those of the batch that it makes, which the rank sends with each batch.

    Attributes:
        cohorts: the cohorts of the dataset.
    """

    def __init__(self, cohorts: Cohorts) -> None:
        self.cohorts = cohorts
        self._rounds: list[Round] = []

    def set(self, rounds: Sequence[tuple[int, ...]]) -> None:
        """Replaces the known rounds by those of the next batch, each given as the fields of `Round`."""
        self._rounds = [Round(*fields) for fields in rounds]

    def find_round(self, position: int) -> Round:
        """Returns the round that has a position of the stream.

        Raises:
            IndexError: it is not among the rounds that were set.
        """
        for of in self._rounds:
            if of.start <= position < of.stop:
                return of
        raise IndexError(f"position {position} is in none of {self._rounds}")


Rounds = AdmissionLog | KnownRounds


def rounds_between(rounds: Rounds, first: int, last: int) -> list[Round]:
    """Returns the rounds that have the positions first..last, in order.

    Raises:
        IndexError: a round is not known.
    """
    found = [rounds.find_round(first)]
    while found[-1].stop <= last:
        found.append(rounds.find_round(found[-1].stop))
    return found
