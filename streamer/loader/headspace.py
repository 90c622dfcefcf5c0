"""Measures the ceiling of the training step: replays batches, so that no step waits for data."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from streamer.loader.device.contiguous import map_tensors
from streamer.loader.stall.stats import quantile


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The speed of the training step without waiting for data.

    Attributes:
        steps: measured. samples: in them. seconds: their sum. median_seconds: of one step.
    """

    steps: int = 0
    samples: int = 0
    seconds: float = 0.0
    median_seconds: float = 0.0

    @property
    def samples_per_second(self) -> float:
        """Samples per second without waiting; 0 before the first measured step."""
        return self.samples / self.seconds if self.seconds else 0.0


class Headspace:
    """Replays batches of `samples` in turn for a number of steps, and measures the steps between them."""

    def __init__(self, batches: Sequence[object], samples: Sequence[int], steps: int) -> None:
        self._batches = batches
        self._samples = samples
        self._steps = steps
        self._nanoseconds: list[int] = []

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[object]:
        """Yields the batches; a step is the time until the next one is requested."""
        self._nanoseconds = []
        for number in range(self._steps if self._batches else 0):
            given = time.perf_counter_ns()
            yield self._batches[number % len(self._batches)]
            self._nanoseconds.append(time.perf_counter_ns() - given)

    @property
    def ceiling(self) -> Ceiling:
        """The ceiling over the steps so far; without the first pass over the batches (warm-up), if there were more."""
        skip = len(self._batches) if len(self._nanoseconds) > len(self._batches) else 0
        spent = self._nanoseconds[skip:]
        samples = sum(self._samples[(skip + at) % len(self._samples)] for at in range(len(spent)))
        return Ceiling(len(spent), samples, sum(spent) / 1e9, quantile(sorted(spent), 0.5) / 1e9)


def detached(batch: object) -> object:
    """A copy that holds no slot of the ring."""
    return map_tensors(batch, lambda tensor: tensor.clone(), encoded=True)
