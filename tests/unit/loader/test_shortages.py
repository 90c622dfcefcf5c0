"""A process that makes samples and may open no more files, as a loader and its user see it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from streamer.errors import ConfigError
from streamer.loader.dataloader import StreamingDataLoader
from tests.fake_dataset import FakeDataset

SAMPLES, BATCH = 12, 3


def _fail(*_: object) -> object:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/data/labels.txt")


def _make(epoch: int, ordinal: int) -> object:
    return {"x": ordinal}


@pytest.mark.parametrize(
    ("workers", "kind"),
    [(0, "process"), (1, "thread"), pytest.param(1, "process", marks=pytest.mark.process)],
)
@pytest.mark.parametrize(("make", "collate_fn"), [(_fail, None), (_make, _fail)], ids=["sample", "batch"])
def test_too_many_open_files_are_named_and_skip_nothing(
    workers: int, kind: str, make: Callable[[int, int], object], collate_fn: Callable[..., object] | None
) -> None:
    """Too many open files in a transform or collate_fn name the limit and the file, and no sample is skipped."""
    dataset = FakeDataset(SAMPLES, make, on_error="skip")
    with StreamingDataLoader(dataset, BATCH, workers, worker_type=kind, collate_fn=collate_fn) as loader:
        with pytest.raises(ConfigError, match="ulimit -n") as caught:
            next(iter(loader))
        assert caught.value.details["field"] == "RLIMIT_NOFILE"
        assert loader.stats().skipped == 0


def test_a_failed_batch_has_no_timeline() -> None:
    """A loader without workers waits for no batch after one has failed or was interrupted."""
    error: type[BaseException] = ValueError

    def fail(epoch: int, ordinal: int) -> object:
        raise error("for the test")

    with StreamingDataLoader(FakeDataset(SAMPLES, fail), BATCH, 0) as loader:
        batches = iter(loader)
        for error in (ValueError, KeyboardInterrupt):
            with pytest.raises(error, match="for the test"):
                next(batches)
            assert loader._supply_owner.supply is not None
            assert loader._supply_owner.supply.head is None
