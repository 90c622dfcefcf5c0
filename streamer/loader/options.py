"""What a user asks of a loader: checked at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from streamer.cgroup import usable_memory_bytes
from streamer.config import MiB, parse_bytes
from streamer.errors import ConfigError
from streamer.loader.contracts import Collate
from streamer.loader.ring.ring import HELD_SLOTS, Limits
from streamer.loader.skipping import OnError, SkipRules
from streamer.loader.stall.reporter import ReportRules
from streamer.loader.workers.imports import needed_modules
from streamer.loader.workers.pool import WorkerConfig

if TYPE_CHECKING:
    import torch

# 61 % of waiting become 23-29 % when one item in 20 takes 16x and 32-48 batches may be begun by 4 workers
# (2026-11-20); 8 per worker, and no more than 48.
_SPAN_PER_WORKER, _SPAN_MAX = 8, 48
# A twentieth of the memory of the machine, or of the container where that has less; at most 2 GiB.
_RING_SHARE, _RING_MAX_BYTES = 20, 2048 * MiB

T = TypeVar("T")
Pin = bool | Literal["auto"]


class LoaderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `StreamingDataLoader`, which describes them.

    Attributes:
        workers: how many of what kind; None: everything happens in the trainer's thread.
        span: batches begun and not yet taken.
        poison: overwrite freed slots; for tests.
    """

    batch_size: int
    workers: WorkerConfig | None
    drop_last: bool
    device: torch.device | None
    device_transform: Callable[[object], object] | None
    collate_fn: Collate | None
    span: int
    ring_bytes: int
    timeout: float
    pin: Pin
    on_error: OnError | None
    error_budget: int | None
    reports: ReportRules
    poison: bool = False

    @property
    def worker_count(self) -> int:
        """How many workers there are; 0: everything happens in the trainer's thread."""
        return self.workers.workers if self.workers is not None else 0

    @property
    def starts_early(self) -> bool:
        """Whether workers can start before it is known what they make."""
        return self.workers is not None and self.workers.worker_type == "process"

    @property
    def ring_limits(self) -> Limits:
        """How many slots the ring may have: two for each worker as a rule, as many as are begun where one is late."""
        assert self.workers is not None
        most = self.span + HELD_SLOTS
        return Limits(min(2 * self.workers.workers + HELD_SLOTS, most), most, self.ring_bytes)

    @property
    def own_generators(self) -> bool:
        """Whether a batch is made by a thread that has the global generators for itself."""
        return self.workers is None or self.workers.worker_type == "process"

    def skip_rules(self, told: SkipRules) -> SkipRules:
        """The loader's own word counts before the data set's."""
        return SkipRules(
            self.on_error or told.on_error, told.budget if self.error_budget is None else self.error_budget
        )


def worker_config(
    num_workers: int, worker_type: str, worker_start: str, user_code: Iterable[object]
) -> WorkerConfig | None:
    """The workers that were asked for; None: there are none.

    Args:
        num_workers: how many.
        worker_type: of what kind.
        worker_start: how processes are started.
        user_code: what is sent to them.

    Raises:
        ConfigError: there are none of that kind or number.
    """
    at_least("num_workers", num_workers, 0)
    kind = one_of("worker_type", worker_type, ("process", "thread"))
    start = one_of("worker_start", worker_start, ("forkserver", "spawn"))
    if num_workers == 0:
        return None
    if kind == "thread":
        return WorkerConfig("thread", num_workers)
    if start == "spawn":
        return WorkerConfig("process", num_workers, "spawn")
    return WorkerConfig("process", num_workers, "forkserver", tuple(needed_modules(user_code)))


def span_of(prefetch_batches: int | None, workers: WorkerConfig | None) -> int:
    """How many batches may be begun and not yet taken."""
    if prefetch_batches is not None:
        return at_least("prefetch_batches", prefetch_batches, 1)
    return min(_SPAN_PER_WORKER * (workers.workers if workers is not None else 1), _SPAN_MAX)


def ring_bytes_of(told: int | str | None) -> int:
    """The ring's memory."""
    if told is not None:
        return parse_bytes(told, "ring_bytes")
    return min(usable_memory_bytes() // _RING_SHARE, _RING_MAX_BYTES)


def at_least(name: str, value: int, least: int) -> int:
    """The value.

    Raises:
        ConfigError: it is below `least`.
    """
    if value < least:
        raise ConfigError(f"{name}={value} is below {least}", field=name)
    return value


def one_of(name: str, value: T, allowed: tuple[T, ...]) -> T:
    """The value.

    Raises:
        ConfigError: it is not allowed.
    """
    if value not in allowed:
        raise ConfigError(f"{name}={value!r} is none of {', '.join(map(repr, allowed))}", field=name)
    return value
