"""What emulated accelerators do, and what they measure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Job:
    """What all accelerators of a run do.

    Attributes:
        url, manifest, storage_options: of the data.
        cache_dir, cache_bytes: of the engine, which the first accelerator starts; None: it chooses its limit.
        batch_size, step_seconds: of one accelerator.
        stacks: all samples have the same shape, so that those of a batch are one array.
        workers, worker_type: of each loader.
        seconds: how long to measure, at least, after the first step.
        accelerators: how many.
    """

    url: str
    manifest: Path
    cache_dir: Path
    cache_bytes: int | None
    batch_size: int
    step_seconds: float
    stacks: bool
    workers: int
    seconds: float
    accelerators: int
    worker_type: Literal["process", "thread"] = "process"
    storage_options: Mapping[str, object] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class Fed:
    """What one accelerator has measured, from the end of its first step on.

    Attributes:
        steps: that it made.
        seconds: that they took, waiting included.
        samples, received_bytes: of their batches.
        bottleneck: the stall report's headline.
    """

    steps: int
    seconds: float
    samples: int
    received_bytes: int
    bottleneck: str


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A number of accelerators, measured together.

    Attributes:
        accelerators: how many.
        utilisation: computing / total, over all of them; 0 where one failed.
        lowest: that of the slowest one.
        samples_per_second, bytes_per_second: of all of them.
        bottleneck: of the slowest one: the stall report's headline, or the error that ended the run.
    """

    accelerators: int
    utilisation: float
    lowest: float
    samples_per_second: float
    bytes_per_second: float
    bottleneck: str


def joined(fed: list[Fed], step_seconds: float) -> Trial:
    """The trial of accelerators that all ended well."""
    slowest = min(fed, key=lambda one: one.steps / one.seconds)
    return Trial(
        accelerators=len(fed),
        utilisation=sum(one.steps for one in fed) * step_seconds / sum(one.seconds for one in fed),
        lowest=slowest.steps * step_seconds / slowest.seconds,
        samples_per_second=sum(one.samples / one.seconds for one in fed),
        bytes_per_second=sum(one.received_bytes / one.seconds for one in fed),
        bottleneck=slowest.bottleneck,
    )


def failed(accelerators: int, error: str) -> Trial:
    """The trial in which one of them ended with an error."""
    return Trial(
        accelerators=accelerators,
        utilisation=0.0,
        lowest=0.0,
        samples_per_second=0.0,
        bytes_per_second=0.0,
        bottleneck=error,
    )
