"""Counts the progress of a pack, and tells it to a callback.

`pack.py` and `prepared.py` count shards by it. The callback is the user's, or the bar of `streamer pack`
(`cli/shards/pack_command.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from streamer.manifest import protocols
from streamer.shards.plan import ShardPlan
from streamer.shards.receipts import Receipt


@dataclass(frozen=True)
class PackProgress:
    """The progress of a pack.

    Attributes:
        shards_done: shards written and uploaded, in this run or an earlier one.
        shards: number of all shards. It is None for an iterable, which does not tell it.
        samples_done: samples in finished shards.
        bytes_done: bytes of finished shards.
        earlier_bytes: those of `bytes_done` that an earlier run has written.
        bytes: approximate bytes of all shards, or None for an iterable.
    """

    shards_done: int
    shards: int | None
    samples_done: int
    bytes_done: int
    earlier_bytes: int
    bytes: int | None


class Callbacks(msgspec.Struct, frozen=True):
    """Functions that a pack calls.

    Attributes:
        on_note: called with a line of text about the source.
        on_index: called with the progress while the source is indexed.
        on_progress: called at the start and after each shard.
    """

    on_note: Callable[[str], None] = lambda note: None
    on_index: Callable[[protocols.BuildProgress], None] = lambda step: None
    on_progress: Callable[[PackProgress], None] = lambda step: None


class Follower:
    """Counts shards, and reports the progress: at once, and after each shard.

    Args:
        plan: plan of the shards, or None for an iterable.
        earlier: receipts of shards that an earlier run has written, by number.
        on_progress: called with each progress.
    """

    def __init__(
        self, plan: ShardPlan | None, earlier: Mapping[int, Receipt], on_progress: Callable[[PackProgress], None]
    ) -> None:
        self._plan = plan
        self._on_progress = on_progress
        self._seen = set(earlier)
        self._samples = sum(receipt.samples for receipt in earlier.values())
        self._bytes = self._earlier_bytes = sum(receipt.size for receipt in earlier.values())
        self._planned_bytes = 0 if plan is None else sum(int(plan.shard_bytes[number]) for number in earlier)
        self._report()

    def count_shard(self, receipt: Receipt) -> None:
        """Counts a finished shard and reports; does nothing for one that is counted already."""
        if receipt.shard in self._seen:
            return
        self._seen.add(receipt.shard)
        self._samples += receipt.samples
        self._bytes += receipt.size
        if self._plan is not None:
            self._planned_bytes += int(self._plan.shard_bytes[receipt.shard])
        self._report()

    def _report(self) -> None:
        """Calls `on_progress` with what was counted so far."""
        plan = self._plan
        left = None if plan is None else max(0, int(plan.shard_bytes.sum()) - self._planned_bytes)
        self._on_progress(
            PackProgress(
                shards_done=len(self._seen),
                shards=None if plan is None else plan.shards,
                samples_done=self._samples,
                bytes_done=self._bytes,
                earlier_bytes=self._earlier_bytes,
                bytes=None if left is None else self._bytes + left,
            )
        )
