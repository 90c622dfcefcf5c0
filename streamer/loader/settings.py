"""What a user asks of a loader: checked at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from streamer.config import MiB, parse_bytes
from streamer.errors import ConfigError
from streamer.loader.pool import Crew
from streamer.loader.skipping import OnError, SkipRules
from streamer.loader.source import Collate
from streamer.loader.stall import ReportRules

if TYPE_CHECKING:
    import torch

# 61 % of waiting become 23-29 % when one item in 20 takes 16x and 32-48 batches may be begun by 4 workers
# (2026-11-20); 8 per worker, and no more than 48.
_SPAN_PER_WORKER, _SPAN_MAX = 8, 48
# Locked and counted against the container: a twentieth of it, at most 2 GiB.
_RING_SHARE, _RING_MAX_BYTES = 20, 2048 * MiB

T = TypeVar("T")
Pin = bool | Literal["auto"]


class LoaderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `StreamingDataLoader`, which describes them.

    Attributes:
        crew: the workers; None: everything happens in the trainer's thread.
        span: batches begun and not yet taken.
        poison: overwrite freed slots; for tests.
    """

    batch_size: int
    crew: Crew | None
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
    def starts_early(self) -> bool:
        """Whether workers can start before it is known what they make."""
        return self.crew is not None and self.crew.worker_type == "process"

    @property
    def own_generators(self) -> bool:
        """Whether a batch is made by a thread that has the global generators for itself."""
        return self.crew is None or self.crew.worker_type == "process"

    def skip_rules(self, told: SkipRules) -> SkipRules:
        """The loader's own word counts before the data set's."""
        return SkipRules(
            self.on_error or told.on_error, told.budget if self.error_budget is None else self.error_budget
        )


def crew_of(num_workers: int, worker_type: str) -> Crew | None:
    """The workers that were asked for.

    Raises:
        ConfigError: there are none of that kind or number.
    """
    at_least("num_workers", num_workers, 0)
    kind = one_of("worker_type", worker_type, ("process", "thread"))
    if num_workers == 0:
        return None
    return Crew("process" if kind == "process" else "thread", num_workers)


def refuse_threads(threads_per_worker: object) -> None:
    """Refuses an option that this loader once had.

    Raises:
        ConfigError: it was given.
    """
    if threads_per_worker is not None:
        raise ConfigError(
            f"threads_per_worker={threads_per_worker!r}: a worker makes one batch at a time; use more num_workers, or "
            "threads of the trainer with worker_type='thread'",
            field="threads_per_worker",
        )


def span_of(prefetch_batches: int | None, crew: Crew | None) -> int:
    """How many batches may be begun and not yet taken."""
    if prefetch_batches is not None:
        return at_least("prefetch_batches", prefetch_batches, 1)
    return min(_SPAN_PER_WORKER * (crew.workers if crew is not None else 1), _SPAN_MAX)


def ring_bytes_of(told: int | str | None) -> int:
    """The ring's memory."""
    if told is not None:
        return parse_bytes(told, "ring_bytes")
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(machine // _RING_SHARE, _RING_MAX_BYTES)


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
