"""The measurements of the demo, from the counts of the ranks, the engine and the store."""

from __future__ import annotations

import hashlib
import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from streamer.demo.events import EpochEnd, Event, Failed, Indexed, Step
from streamer.demo.server import Counts
from streamer.errors import StreamerError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Kill:
    """The kill of an engine: its pid, its successor's, the time on the clock of the steps, the epoch from 0."""

    pid: int
    successor: int
    at_seconds: float
    epoch: int


@dataclass(frozen=True)
class Usage:
    """The bytes of the chunks that the ranks needed, and of those that needed no byte from the store."""

    need_bytes: int = 0
    hit_bytes: int = 0

    @property
    def hit_share(self) -> float:
        """Hits in bytes."""
        return self.hit_bytes / self.need_bytes if self.need_bytes else 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.need_bytes + other.need_bytes, self.hit_bytes + other.hit_bytes)

    def __sub__(self, earlier: Usage) -> Usage:
        return Usage(self.need_bytes - earlier.need_bytes, self.hit_bytes - earlier.hit_bytes)


@dataclass(frozen=True, kw_only=True)
class EpochRow:
    """One epoch over all ranks.

    Attributes:
        samples: without repeats.
        seconds: of the slowest rank.
        wait_share: of the ranks' time, waiting for data.
        longest_wait_seconds: for one batch, on any rank.
        usage: hits.
        store: what the store served between the ends of the epochs; look-ahead included.
        loss: mean over the ranks.
        accuracy: share of the samples that were named right.
    """

    epoch: int
    samples: int
    seconds: float
    wait_share: float
    longest_wait_seconds: float
    usage: Usage
    store: Counts
    loss: float
    accuracy: float

    @property
    def samples_per_second(self) -> float:
        """Of all ranks together."""
        return self.samples / self.seconds


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The whole run."""

    dataset_bytes: int
    cache_bytes: int
    chunks: int
    index: Counts
    rows: Sequence[EpochRow]
    steps: Sequence[Step]
    kill: Kill | None
    keys: str


@dataclass
class Collector:
    """Gathers the events of all ranks. A moment is complete when every rank has reported it."""

    ranks: int
    steps: list[Step] = field(default_factory=list)
    indexed: dict[int, Indexed] = field(default_factory=dict)
    ends: defaultdict[int, dict[int, EpochEnd]] = field(default_factory=lambda: defaultdict(dict))

    def take(self, event: Event) -> bool:
        """Takes an event in; True: this one completes the index or an epoch.

        Raises:
            StreamerError: the event is a rank's failure.
        """
        match event:
            case Step():
                self.steps.append(event)
                return False
            case Indexed():
                self.indexed[event.rank] = event
                return len(self.indexed) == self.ranks
            case EpochEnd():
                self.ends[event.epoch][event.rank] = event
                return len(self.ends[event.epoch]) == self.ranks
            case Failed():
                logger.info("rank %d failed:\n%s", event.rank, event.error)
                last_line = event.error.strip().splitlines()[-1]
                raise StreamerError(f"rank {event.rank} failed: {last_line} (--debug shows where)", rank=event.rank)

    def row(self, epoch: int, usage: Usage, store: Counts) -> EpochRow:
        """The epoch's line."""
        ends = list(self.ends[epoch].values())
        seconds = sum(end.seconds for end in ends)
        return EpochRow(
            epoch=epoch,
            samples=sum(end.samples for end in ends),
            seconds=max(end.seconds for end in ends),
            wait_share=sum(end.wait_seconds for end in ends) / seconds,
            longest_wait_seconds=max(end.longest_wait_seconds for end in ends),
            usage=usage,
            store=store,
            loss=sum(end.loss for end in ends) / len(ends),
            accuracy=sum(end.right for end in ends) / sum(end.samples for end in ends),
        )

    def keys(self) -> str:
        """All sample keys in the order of all ranks, as one digest."""
        digest = hashlib.blake2b(digest_size=8)
        for epoch in sorted(self.ends):
            for rank in sorted(self.ends[epoch]):
                digest.update(self.ends[epoch][rank].keys.encode())
        return digest.hexdigest()
