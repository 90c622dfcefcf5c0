"""The shapes of public storage benchmarks' workloads: sizes, batches, steps and bars. Pure.

Bytes arrive in host memory, undecoded. The figures are those that MLPerf Storage v1 to v3 publishes (2026-11). A run
here has scaled data and none of its rules: it is like that benchmark, and no result of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamer.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What one emulated accelerator does, and what it reads.

    Attributes:
        name: after the model whose training it resembles.
        kind: of the objects: "jpeg" (a sample each), "tfrecord", "npz" (a sample each), "parquet".
        sample_bytes, deviation_bytes: mean and standard deviation of a sample's size.
        object_samples: samples in an object.
        objects: that are generated unless told otherwise; the scaled set.
        batch_size: samples that an accelerator takes for a step.
        step_seconds: of its computing.
        bar: the least utilisation that counts as fed.
    """

    name: str
    kind: str
    sample_bytes: int
    deviation_bytes: int = 0
    object_samples: int = 1
    objects: int
    batch_size: int
    step_seconds: float
    bar: float

    @property
    def needed_bytes_per_second(self) -> float:
        """What one accelerator reads when it never waits."""
        return self.batch_size * self.sample_bytes / self.step_seconds

    @property
    def data_bytes(self) -> int:
        """About how much is generated."""
        return self.objects * self.object_samples * self.sample_bytes


# Steps of B200 for retinanet and flux, of H100 for the others. The sets take 2 to 3 GB; unet3d's takes 9 GB, because a
# fifth of it must hold more than one batch of 1.03 GB.
WORKLOADS = {
    one.name: one
    for one in (
        Workload(
            name="retinanet",
            kind="jpeg",
            sample_bytes=322_957,
            objects=8000,
            batch_size=24,
            step_seconds=0.04755,
            bar=0.85,
        ),
        Workload(
            name="resnet50",
            kind="tfrecord",
            sample_bytes=114_660,
            object_samples=1251,
            objects=16,
            batch_size=400,
            step_seconds=0.224,
            bar=0.90,
        ),
        Workload(
            name="unet3d",
            kind="npz",
            sample_bytes=146_600_628,
            deviation_bytes=68_341_808,
            objects=60,
            batch_size=7,
            step_seconds=0.323,
            bar=0.90,
        ),
        Workload(
            name="cosmoflow",
            kind="tfrecord",
            sample_bytes=2_828_486,
            deviation_bytes=71_311,
            objects=1024,
            batch_size=1,
            step_seconds=0.0035,
            bar=0.70,
        ),
        Workload(
            name="flux",
            kind="parquet",
            sample_bytes=2_164_832,
            object_samples=288,
            objects=8,
            batch_size=48,
            step_seconds=1.35,
            bar=0.90,
        ),
    )
}


def workload(name: str) -> Workload:
    """A workload by its name.

    Raises:
        ConfigError: there is none.
    """
    if name not in WORKLOADS:
        raise ConfigError(f"--like {name}: there are {', '.join(WORKLOADS)}", field="like")
    return WORKLOADS[name]
