"""Keeps the statistics of a loader, at a few additions per batch.

`loader/epoch.py` measures the trainer by a `TrainerClock`, `loader/feed/` counts batches, `loader/loader_views.py`
joins all in `LoaderStats`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from streamer.batches.causes import DEVICE, HANDOFF, Ledger, Recent, Trace
from streamer.batches.rows.pieces import PackedCounts

Scalar = str | int | float | bool | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PartView:
    """Holds the engine's statistics of one member of a mix, for this loader's session.

    Attributes:
        needs, hits: Number of uses of chunks, and of those that were hits.
        store_bytes: Bytes of the uses that were no hits.
        hit_bound: The largest share of hits, by bytes, that one reader has with any fixed choice of kept chunks.
    """

    needs: int = 0
    hits: int = 0
    store_bytes: int = 0
    hit_bound: float = 0.0

    @classmethod
    def of(cls, row: Mapping[str, object]) -> PartView:
        """Returns the view of a row of the table "members" in the engine's statistics; a missing value is 0."""
        needed = _number(row.get("needed_bytes"))
        hit = _number(row.get("hit_bytes"))
        counts = {name: int(_number(row.get(name))) for name in ("needs", "hits")}
        return cls(**counts, store_bytes=int(needed - hit), hit_bound=_number(row.get("hit_bound")))


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberStats:
    """Holds the statistics of one member of a mix.

    Attributes:
        drawn: Number of the member's samples that the trainers of all ranks have received, over all epochs.
        passes: Number of passes over the member so far, with a fraction.
        share: Share of the member in all samples so far, 0 to 1.
        skipped: Number of its samples that this rank has replaced by others, or left out of rows (`on_error="skip"`).
        engine: The engine's statistics of the member, or None if there is no engine, or no answer in time.
    """

    drawn: int
    passes: float
    share: float
    skipped: int
    engine: PartView | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineView:
    """Holds the engine's statistics, and those of this loader's session. Counts and seconds are since its start.

    Attributes:
        store_bytes, store_requests: Bytes of chunks from the store, and number of requests for them.
        peer_bytes: Bytes of chunks from peers.
        needs, hits: Number of uses of chunks, and of those that were hits.
        retries: Number of requests that were tried again.
        throttled: Number of requests among them to which the store has answered "slow down".
        stalled: Number of requests without progress.
        in_flight: Number of requests to the store now.
        fetches: Number of chunks between store and SSD now.
        limit_bytes, kept_bytes: Limit of the cache, and bytes of its kept part.
        most_recoders: Number of recoders that there may be.
        recode_busy_seconds: Time for which recoders had work, of all together.
        loop_cpu_seconds: CPU time of the engine's loop.
        uptime_seconds: Time since the engine listens.
        fetch_processes: Number of fetch processes now.
        hit_bound: The largest share of hits, by bytes, that one reader has with any fixed choice of kept chunks.
        waiting_seconds: Time that this session's consumer waited for the engine.
        parts: Statistics of each member of a mix, by name.
    """

    store_bytes: int = 0
    store_requests: int = 0
    peer_bytes: int = 0
    needs: int = 0
    hits: int = 0
    retries: int = 0
    throttled: int = 0
    stalled: int = 0
    in_flight: int = 0
    fetches: int = 0
    limit_bytes: int = 0
    kept_bytes: int = 0
    most_recoders: int = 0
    recode_busy_seconds: float = 0.0
    loop_cpu_seconds: float = 0.0
    uptime_seconds: float = 0.0
    fetch_processes: int = 0
    hit_bound: float = 0.0
    waiting_seconds: float = 0.0
    parts: Mapping[str, PartView] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Mapping[str, object]) -> EngineView:
        """Returns the view of the engine's statistics by name, with `consumer`, `job` and `dataset` of this session."""
        mine = tuple(values.get(name) for name in _IDENTITY)
        waited = sum(_number(row.get("waiting_seconds")) for row in _rows(values, "sessions", mine))
        parts = {str(row.get("member")): PartView.of(row) for row in _rows(values, "members", mine)}
        # Counters that an older engine does not have are 0.
        counts: dict[str, Any] = {name: int(_number(values.get(name))) for name in _fields("int")}
        seconds: dict[str, Any] = {name: _number(values.get(name)) for name in _fields("float")}
        return cls(**counts, **{**seconds, "waiting_seconds": waited}, parts=parts)


# Names of the values by which a row of the engine's statistics is that of a session.
_IDENTITY = ("consumer", "job", "dataset")


def _fields(kind: str) -> list[str]:
    """Returns the names of the fields of `EngineView` whose annotation is `kind`."""
    return [field.name for field in fields(EngineView) if field.type == kind]


def _rows(values: Mapping[str, object], table: str, mine: tuple[object, ...]) -> list[Mapping[str, object]]:
    """Returns the rows of a table of the engine's statistics whose `_IDENTITY` is `mine`."""
    rows = values.get(table)
    found = rows if isinstance(rows, list) else []
    return [row for row in found if tuple(row.get(name) for name in _IDENTITY) == mine]


def _number(value: object) -> float:
    return value if isinstance(value, (int, float)) else 0


@dataclass(frozen=True, slots=True)
class PackingStats:
    """Counts what the rows, or buckets, of this rank were made of.

    Attributes:
        batches: Number of batches of rows.
        rows: Number of rows in these batches.
        documents: Number of documents, and of pieces of documents, in these rows.
        cut: Number of the pieces among them.
        tokens: Number of tokens in these rows.
        places: Number of tokens that the rows have room for.
        cost: Sum over the batches of the mean cost of a row, as `Balance` has it.
        squared_cost: Sum over the batches of the square of that mean.
        left_out: Tokens that `overflow` leaves out of every epoch, of documents longer than a row, over all ranks.
        estimated: Tokens that the same documents were estimated to have, with `Packing(lengths=Estimate(...))`.
        overflowed: Tokens of these documents that had no room in their rows, besides `tokens`.
    """

    batches: int = 0
    rows: int = 0
    documents: int = 0
    cut: int = 0
    tokens: int = 0
    places: int = 0
    cost: float = 0.0
    squared_cost: float = 0.0
    left_out: int = 0
    estimated: int = 0
    overflowed: int = 0

    @property
    def padding(self) -> float:
        """Share of the places that is empty, 0 to 1."""
        return 1 - self.tokens / self.places if self.places else 0.0

    @property
    def cost_spread(self) -> float:
        """Standard deviation of the costs of the batches, divided by their mean: 0 if all are equal.

        Ranks differ as much in a step, unless `balance=` is given: with it all of them get batches of like cost.
        """
        if not self.cost:
            return 0.0
        mean = self.cost / self.batches
        return math.sqrt(max(0.0, self.squared_cost / self.batches - mean**2)) / mean

    def add_batch(self, rows: int, packed: PackedCounts) -> PackingStats:
        """Returns the counts with those of a further batch.

        Args:
            rows: Number of rows in the batch.
            packed: Counts of its rows.
        """
        mean = packed.cost / rows
        return PackingStats(
            batches=self.batches + 1,
            rows=self.rows + rows,
            documents=self.documents + packed.documents,
            cut=self.cut + packed.cut,
            tokens=self.tokens + packed.tokens,
            places=self.places + packed.places,
            cost=self.cost + mean,
            squared_cost=self.squared_cost + mean**2,
            estimated=self.estimated + packed.estimated,
            overflowed=self.overflowed + packed.overflowed,
        )

    def since(self, before: PackingStats) -> PackingStats:
        """Returns the difference to earlier counts; the counts themselves if a new supply has begun since."""
        then = before if before.batches <= self.batches else PackingStats()
        names = [field.name for field in fields(self) if field.name != "left_out"]
        return replace(self, **{name: getattr(self, name) - getattr(then, name) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowingStats:
    """Holds the statistics of a growing dataset, over all ranks.

    Attributes:
        reuse: Number of uses of each admitted sample.
        round: Number of the running round, from 0.
        passes: Number of passes over the dataset that are admitted so far; a part of a pass is a fraction.
        least_uses, most_uses: Bounds of the number of uses of any sample before the running round.
        live_bytes: Bytes of the samples that the running round trains.
        data_bytes: Bytes of all samples.
        sample_bytes: Mean bytes of a sample.
        ranks, nodes: Number of ranks, and of machines.
    """

    reuse: int
    round: int
    passes: float
    least_uses: int
    most_uses: int
    live_bytes: int
    data_bytes: int
    sample_bytes: float
    ranks: int = 1
    nodes: int = 1


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """Holds the statistics since the loader began. Times are seconds.

    Attributes:
        batches, samples: Number of batches delivered, and of samples in them.
        nbytes: Bytes of these batches in the ring.
        wait_seconds: Time that the trainer waited for data.
        step_seconds: Time that the trainer was busy between two batches.
        wait_median_seconds, wait_p99_seconds: Median and 99th percentile of the waiting for the last 4,096 batches.
        load_seconds: Time of the workers for loading.
        read_seconds, decode_seconds, transform_seconds: Parts of the loading, if the dataset measures them.
        collate_seconds, write_seconds: Time of the workers for collating samples, and for copying them into the ring.
        handoff_seconds: Time of the trainer for making tensors of finished slots.
        device_seconds: Part of the handoff that is for copies to the device.
        ring_slots, ring_bytes: Number of slots of the ring, and their memory together; 0 without a ring.
        ring_free: Number of slots that are free now.
        ready_batches: Number of finished batches that wait now.
        occupancy: Mean number of finished batches at a request.
        spilled_batches: Number of batches in memory of their own, for lack of a slot.
        oversize_batches: Number of batches that were larger than their slot.
        worker_faults: Number of minor page faults of the workers.
        pickled_bytes: Bytes of the pickled structure of all batches.
        respawns: Number of workers that were replaced.
        rereads: Number of batches that were repeated because a chunk was missing or wrong.
        skipped: Samples replaced by others, documents left out of rows (`on_error="skip"`), in the batches delivered.
        pinned: Whether the ring is registered with CUDA.
        waiting: Seconds of waiting by cause; see `streamer.batches.causes`.
        engine: Statistics of the engine, or None if there is no engine, or no answer in time.
        members: Statistics of each member of a mix, by name; empty for one dataset.
        growing: Statistics of a growing dataset, or None for another one.
        packing: Statistics of the rows that were made, or None if samples are not packed.
    """

    batches: int = 0
    samples: int = 0
    nbytes: int = 0
    wait_seconds: float = 0.0
    step_seconds: float = 0.0
    wait_median_seconds: float = 0.0
    wait_p99_seconds: float = 0.0
    load_seconds: float = 0.0
    read_seconds: float = 0.0
    decode_seconds: float = 0.0
    transform_seconds: float = 0.0
    collate_seconds: float = 0.0
    write_seconds: float = 0.0
    handoff_seconds: float = 0.0
    device_seconds: float = 0.0
    ring_slots: int = 0
    ring_bytes: int = 0
    ring_free: int = 0
    ready_batches: int = 0
    occupancy: float = 0.0
    spilled_batches: int = 0
    oversize_batches: int = 0
    worker_faults: int = 0
    pickled_bytes: int = 0
    respawns: int = 0
    rereads: int = 0
    skipped: int = 0
    pinned: bool = False
    waiting: Mapping[str, float] = field(default_factory=dict)
    engine: EngineView | None = None
    members: Mapping[str, MemberStats] = field(default_factory=dict)
    growing: GrowingStats | None = None
    packing: PackingStats | None = None

    @property
    def wait_share(self) -> float:
        """Share of the trainer's time spent waiting for data."""
        total = self.wait_seconds + self.step_seconds
        return self.wait_seconds / total if total else 0.0


class TrainerClock:
    """Measures the trainer's time; called by the trainer's thread, five times per batch.

    The trainer's request is `ask`, and its batch `leave`. In between a prefetcher may take none or several batches:
    for each it calls `begin`, `arrive` and `note_content`.

    Attributes:
        batches, samples, nbytes: Number of batches that the trainer has, of their samples, and of bytes in the ring.
        occupancy: Sum of the numbers of finished batches at all requests.
        waits: Nanoseconds of waiting for each of the last batches.
        takes: Nanoseconds from request to delivery of each of the last batches.
        steps: Nanoseconds of computing after each of the last batches.
        ledger: Waiting by cause.
        waiting_since: Nanoseconds of `perf_counter` at which the current wait began, or 0 if there is none.
    """

    def __init__(self) -> None:
        self.batches = 0
        self.samples = 0
        self.nbytes = 0
        self.occupancy = 0
        self.waits: Recent[int] = Recent()
        self.takes: Recent[int] = Recent()
        self.steps: Recent[int] = Recent()
        self.ledger = Ledger()
        self.waiting_since = 0
        self._wait = 0
        self._step = 0
        self._handoff = 0
        self._waited = self._last = 0
        self._asked_at = self._left_at = 0
        self._at = 0

    def ask(self, ready: int) -> None:
        """Notes that the trainer requests a batch while `ready` batches are finished."""
        self._at = self._asked_at = self.waiting_since = now = time.perf_counter_ns()
        self.occupancy += ready
        self._waited = 0
        if self._left_at:
            self._step += now - self._left_at
            self.steps.add(now - self._left_at)

    def begin(self) -> None:
        """Begins to take the next batch from the workers; the time before it is charged to the device."""
        self.waiting_since = self._spend_on_device()

    def arrive(self) -> None:
        """Notes that the batch has arrived."""
        now = time.perf_counter_ns()
        self._last = waited = now - self._at
        self._waited += waited
        self._wait += waited
        self._at = now
        self.waiting_since = 0

    def note_content(self, trace: Trace | None) -> None:
        """Notes that the tensors of the batch are made; a trace of None means that the batch has failed."""
        self.ledger.note(trace, self._last, self._at)
        now = time.perf_counter_ns()
        self._handoff += now - self._at
        self.ledger.nanoseconds[HANDOFF] += now - self._at
        self._at = now

    def leave(self, samples: int, nbytes: int) -> None:
        """Notes that the trainer receives a batch with so many samples, and bytes in the ring."""
        self._left_at = self._spend_on_device()
        self.waits.add(self._waited)
        self.takes.add(self._left_at - self._asked_at)
        self.waiting_since = 0
        self.batches += 1
        self.samples += samples
        self.nbytes += nbytes

    def pause(self) -> None:
        """Notes that the epoch has ended: the time until the next request is not a step."""
        self._left_at = self.waiting_since = 0

    def measure_wait_seconds(self) -> float:
        """Returns the seconds of the current wait so far, or 0 if there is none; any thread."""
        since = self.waiting_since
        return (time.perf_counter_ns() - since) / 1e9 if since else 0.0

    def stats(self) -> LoaderStats:
        """Returns the statistics that the trainer's thread has measured; all others are 0."""
        waits = sorted(self.waits.tail().values)
        return LoaderStats(
            batches=self.batches,
            samples=self.samples,
            nbytes=self.nbytes,
            wait_seconds=self._wait / 1e9,
            step_seconds=self._step / 1e9,
            wait_median_seconds=quantile(waits, 0.5) / 1e9,
            wait_p99_seconds=quantile(waits, 0.99) / 1e9,
            handoff_seconds=self._handoff / 1e9,
            device_seconds=self.ledger.nanoseconds[DEVICE] / 1e9,
            occupancy=self.occupancy / max(self.batches, 1),
            waiting={cause: spent / 1e9 for cause, spent in self.ledger.nanoseconds.items()},
        )

    def _spend_on_device(self) -> int:
        """Charges the time since the last call to the device; returns the current time."""
        now = time.perf_counter_ns()
        spent = now - self._at
        self._at = now
        self._handoff += spent
        self.ledger.nanoseconds[DEVICE] += spent
        return now


def quantile(ordered: Sequence[int], share: float) -> int:
    """Returns the value below which this share of an ascending sequence is; 0 for an empty one."""
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0
