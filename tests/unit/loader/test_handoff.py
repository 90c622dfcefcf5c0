"""Tests of what a batch costs on its way, in figures that repeat: page faults and pickled bytes, with a real worker."""

from __future__ import annotations

import resource
import sys

import cloudpickle
import numpy as np
import pytest

from streamer.loader.dataloader import StreamingDataLoader
from tests.fake_dataset import FakeDataset

cloudpickle.register_pickle_by_value(sys.modules[__name__])

WARM_UP, BATCHES = 40, 500


def fresh(epoch: int, ordinal: int) -> object:
    """Makes a new array for each sample, larger than what glibc gives back to the system by default."""
    return {"x": np.full((210, 210, 3), ordinal % 256, np.uint8), "y": ordinal, "key": f"{ordinal:09}"}


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@pytest.mark.process
def test_no_page_faults_and_nothing_pickled():
    """A batch of 2 MB costs below one page fault in the trainer, four in the worker, and 512 bytes pickled.

    These are means of 500 batches.
    """
    with StreamingDataLoader(FakeDataset(16 * (WARM_UP + BATCHES), fresh), 16, 1, prefetch_batches=8) as loader:
        batches = iter(loader)
        for _ in range(WARM_UP):
            next(batches)
        before, trainer, clean = loader.stats(), faults(), 0
        for _ in range(BATCHES):
            at = faults()
            next(batches)
            clean += faults() == at
        after = loader.stats()
        assert (faults() - trainer) / BATCHES < 1
        assert clean > BATCHES / 2
        # A forked worker copies a page that it shares when it first writes to it.
        assert (after.worker_faults - before.worker_faults) / BATCHES < 4
        assert after.pickled_bytes / after.batches < 512
        assert after.spilled_batches == 0
