"""The measurements of the demo, from the counts of the ranks, the engine and the store."""

from __future__ import annotations

import hashlib
import logging
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from streamer.errors import StreamerError
from streamer.tools.demo.events import EpochEnd, Event, Failed, Indexed, Step
from streamer.tools.demo.server import Counts, Tally

logger = logging.getLogger(__name__)


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """The kill of an engine: its pid, its successor's, the time on the clock of the steps, the epoch from 0."""

    pid: int
    successor: int
    at_seconds: float
    epoch: int


class Usage(Tally, frozen=True):
    """The bytes of the chunks that the ranks needed, and of those that needed no byte from the store."""

    need_bytes: int = 0
    hit_bytes: int = 0

    @property
    def hit_share(self) -> float:
        """Share of the needed bytes that were hits."""
        return self.hit_bytes / self.need_bytes if self.need_bytes else 0.0


class EpochRow(msgspec.Struct, frozen=True, kw_only=True):
    """One epoch over all ranks.

    Attributes:
        seconds: time of the slowest rank.
        wait_share: share of the ranks' time that they waited for data.
        longest_wait_seconds: longest wait for one batch, on any rank.
        store: requests that the store served between the ends of the epochs; look-ahead included.
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
        """Samples per second of all ranks together."""
        return self.samples / self.seconds


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The whole run."""

    dataset_bytes: int
    cache_bytes: int
    chunks: int
    index: Counts
    rows: Sequence[EpochRow]
    steps: Sequence[Step]
    kill: Kill | None
    keys: str


class Collector:
    """Gathers the events of all ranks. A moment is complete when every rank has reported it."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.steps: list[Step] = []
        self.indexed: dict[int, Indexed] = {}
        self.ends: defaultdict[int, dict[int, EpochEnd]] = defaultdict(dict)

    def take(self, event: Event) -> bool:
        """Records an event; returns whether it completes the index or an epoch.

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
        """Returns the row of an epoch."""
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
        """Returns a digest of all sample keys in the order of all ranks."""
        digest = hashlib.blake2b(digest_size=8)
        for epoch in sorted(self.ends):
            for rank in sorted(self.ends[epoch]):
                digest.update(self.ends[epoch][rank].keys.encode())
        return digest.hexdigest()
