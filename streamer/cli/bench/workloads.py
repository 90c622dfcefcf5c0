"""The shapes of public storage benchmarks' workloads: sizes, batches, steps and bars. Pure.

Bytes arrive in host memory, undecoded. The figures are those that MLPerf Storage v1 to v3 publishes (2026-11). A run
here has scaled data and none of its rules: it is like that benchmark, and no result of it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
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
    deviation_bytes: int
    object_samples: int
    objects: int
    batch_size: int
    step_seconds: float
    bar: float

    @property
    def needed_bytes_per_second(self) -> float:
        """What one accelerator reads when it never waits."""
        return self.batch_size * self.sample_bytes / self.step_seconds


# Steps of B200 for retinanet and flux, of H100 for the others. The sets take 2 to 3 GB; unet3d's takes 9 GB, because a
# fifth of it must hold more than one batch of 1.03 GB.
WORKLOADS = {
    one.name: one
    for one in (
        Workload("retinanet", "jpeg", 322_957, 0, 1, 8000, 24, 0.04755, 0.85),
        Workload("resnet50", "tfrecord", 114_660, 0, 1251, 16, 400, 0.224, 0.90),
        Workload("unet3d", "npz", 146_600_628, 68_341_808, 1, 60, 7, 0.323, 0.90),
        Workload("cosmoflow", "tfrecord", 2_828_486, 71_311, 1, 1024, 1, 0.0035, 0.70),
        Workload("flux", "parquet", 2_164_832, 0, 288, 8, 48, 1.35, 0.90),
    )
}
