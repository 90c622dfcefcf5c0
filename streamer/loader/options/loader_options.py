"""Keeps the settings of a loader, checked when it is constructed, and chooses their defaults.

`loader/dataloader.py` makes them, `loader/epoch.py` and `loader/loader_views.py` read them; `streamer plan` uses the
default of `span`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from streamer.base import linux
from streamer.base.cgroup import usable_memory_bytes
from streamer.batches.checks import are_names, at_least, function, one_of, seconds
from streamer.batches.ring.ring import HELD_SLOTS, Limits
from streamer.batches.samples.seeding import warn_of_generators
from streamer.batches.samples.units import Collate
from streamer.batches.torch_arguments import Pin, WorkerStart
from streamer.batches.workers.imports import find_modules
from streamer.batches.workers.pool import WorkerConfig
from streamer.config import MiB, parse_bytes
from streamer.errors import ConfigError
from streamer.loader.stall.reporter import OnReport
from streamer.order.plan import LastBatch

if TYPE_CHECKING:
    import torch

# Default number of batches that may be begun and not yet taken: 8 per worker, at most 48. If one sample in 20 takes 16
# times as long, 32 to 48 batches for 4 workers reduce the waiting from 61 % to 23-29 % (2026-11-20).
SPAN_PER_WORKER = 8
SPAN_MAX = 48
# The ring gets a twentieth of the memory of the machine, or of the container if that has less; at most 2 GiB.
_RING_SHARE = 20
_RING_MAX_BYTES = 2048 * MiB


class LoaderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the arguments of `StreamingDataLoader`, which documents them.

    Attributes:
        workers: Number and kind of the workers, or None if the trainer's thread makes the batches.
        span: Number of batches that may be begun and not yet taken, `prefetch_batches`.
        pin: How the ring is registered with CUDA, `pin_memory`.
        ragged: Fields that are joined, not stacked.
        poison: Whether freed slots are overwritten; for tests.

    Raises:
        ConfigError: `report_every` is no time above 0, `on_report` is no function, or is one for reports that are
            never made.
    """

    batch_size: int
    workers: WorkerConfig | None
    last_batch: LastBatch | None
    device: torch.device | None
    device_transform: Callable[[object], object] | None
    collate_fn: Collate | None
    span: int
    ring_bytes: int
    timeout: float
    pin: Pin
    report_every: float | None
    on_report: OnReport | None
    ragged: tuple[str, ...] = ()
    poison: bool = False

    def __post_init__(self) -> None:
        function("on_report", self.on_report)
        if self.report_every is None:
            if self.on_report is not None:
                raise ConfigError("on_report= with report_every=None: no report is made", field="on_report")
        elif seconds("report_every", self.report_every) <= 0:
            raise ConfigError(f"report_every={self.report_every:g} is not above 0 seconds", field="report_every")

    @property
    def worker_count(self) -> int:
        """The number of workers, or 0 if the trainer's thread makes the batches."""
        return self.workers.workers if self.workers is not None else 0

    @property
    def starts_early(self) -> bool:
        """Whether workers can start before the dataset is prepared."""
        return self.workers is not None and self.workers.worker_type == "process"

    @property
    def ring_limits(self) -> Limits:
        """The limits of the ring: usually two slots per worker; while a batch is late, one for each begun batch.

        Each has `HELD_SLOTS` more for the trainer.
        """
        assert self.workers is not None
        limit = self.span + HELD_SLOTS
        return Limits(min(2 * self.workers.workers + HELD_SLOTS, limit), limit, self.ring_bytes)

    @property
    def own_generators(self) -> bool:
        """Whether a single thread of each process makes batches, and so has the global random generators alone."""
        return self.workers is None or self.workers.worker_type == "process"


def make_worker_config(
    num_workers: int, worker_type: str, start: WorkerStart, user_code: Sequence[object]
) -> WorkerConfig | None:
    """Returns the configuration of the workers, or None if there are none.

    Logs random generators in the user's code that are not seeded for each sample.

    Args:
        num_workers: Number of workers.
        worker_type: Kind of workers, "process" or "thread".
        start: Way to start processes.
        user_code: Functions of the user that workers run; the modules of these are imported first.

    Raises:
        ConfigError: an invalid number or kind, or a system without epoll, which workers need.
    """
    num_workers = at_least("num_workers", num_workers, 0)
    kind = one_of("worker_type", worker_type, ("process", "thread"))
    warn_of_generators(user_code, shared=num_workers > 0 and kind == "thread")
    if num_workers == 0:
        return None
    # Workers need epoll: its absence is an error before they start.
    linux.epoll().close()
    if kind == "thread":
        return WorkerConfig("thread", num_workers)
    if start == "spawn":
        return WorkerConfig("process", num_workers, "spawn")
    return WorkerConfig("process", num_workers, "forkserver", tuple(find_modules(user_code)))


def check_ragged(fields: Sequence[str], collate_fn: Collate | None) -> tuple[str, ...]:
    """Returns the fields that are joined, not stacked.

    Raises:
        ConfigError: they are no names, or there is a collate_fn, which makes the batch itself.
    """
    if not are_names(fields):
        raise ConfigError(f"ragged={fields!r}: give a sequence of names of fields, as ('jpg',)", field="ragged")
    if fields and collate_fn is not None:
        raise ConfigError("ragged= with collate_fn: one of them makes the batch", field="ragged")
    return tuple(fields)


def choose_span(prefetch_batches: int | None, workers: WorkerConfig | None) -> int:
    """Returns the number of batches that may be begun and not yet taken; raises ConfigError for one below 1."""
    if prefetch_batches is not None:
        return at_least("prefetch_batches", prefetch_batches, 1)
    return min(SPAN_PER_WORKER * (workers.workers if workers is not None else 1), SPAN_MAX)


def choose_ring_bytes(setting: int | str | None) -> int:
    """Returns the bytes of the ring, as set or by default; raises ConfigError for a setting that is no size."""
    if setting is not None:
        return parse_bytes(setting, "ring_bytes")
    return min(usable_memory_bytes() // _RING_SHARE, _RING_MAX_BYTES)


def make_no_batch_error(batch_size: int) -> ConfigError:
    """Returns the error of an epoch without a batch, for which the trainer would wait without an end."""
    return ConfigError(
        f"an epoch has no batch: the samples are fewer than one batch of all ranks (batch_size={batch_size} on each), "
        "and drop_last=True or Order(last_batch='drop') leaves the incomplete one out; lower batch_size, or keep that "
        "batch",
        field="batch_size",
    )
