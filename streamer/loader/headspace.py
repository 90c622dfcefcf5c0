"""The ceiling of the training step itself: batches that are replayed, so that no step waits for data."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from streamer.loader.device.contiguous import map_tensors
from streamer.loader.stall.stats import quantile


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What the training step alone can do.

    Attributes:
        steps: that were measured. samples: in them. seconds: all of them. median_seconds: of one.
    """

    steps: int = 0
    samples: int = 0
    seconds: float = 0.0
    median_seconds: float = 0.0

    @property
    def samples_per_second(self) -> float:
        """With data that cost nothing; 0 before anything was measured."""
        return self.samples / self.seconds if self.seconds else 0.0


class Headspace:
    """Replays batches that are there already, and times the steps between them: the ceiling of the step itself.

    Args:
        batches: what is replayed, in turn.
        samples: in each of them.
        steps: how many are given out.
    """

    def __init__(self, batches: Sequence[object], samples: Sequence[int], steps: int) -> None:
        self._batches = batches
        self._samples = samples
        self._steps = steps
        self._nanoseconds: list[int] = []

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[object]:
        """Gives out the batches; the time until the next is asked for is the step's."""
        self._nanoseconds = []
        for number in range(self._steps if self._batches else 0):
            given = time.perf_counter_ns()
            yield self._batches[number % len(self._batches)]
            self._nanoseconds.append(time.perf_counter_ns() - given)

    @property
    def ceiling(self) -> Ceiling:
        """Of the steps so far; without the first pass over the batches, which warms up, when there were more."""
        skip = len(self._batches) if len(self._nanoseconds) > len(self._batches) else 0
        spent = self._nanoseconds[skip:]
        samples = sum(self._samples[(skip + at) % len(self._samples)] for at in range(len(spent)))
        return Ceiling(len(spent), samples, sum(spent) / 1e9, quantile(sorted(spent), 0.5) / 1e9)


def detached(batch: object) -> object:
    """A copy that holds no slot of the ring."""
    return map_tensors(batch, lambda tensor: tensor.clone())
