"""A process that makes samples and may open no more files, as a loader and its user see it."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable

import numpy as np
import pytest

from streamer.decode import SampleDecoder
from streamer.errors import ConfigError
from streamer.formats.base import Field
from streamer.loader.dataloader import StreamingDataLoader
from tests.descriptors import full_table
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


def _decode_by_file(content: bytes) -> object:
    """Decodes as users do whose library reads paths only, while no further file can be opened."""
    tempfile.gettempdir()
    with full_table(), tempfile.NamedTemporaryFile():
        return len(content)


def _take_memory(content: bytes) -> object:
    # More than the addresses of a machine: numpy gets no memory, whatever the limits are.
    return np.zeros(1 << 58, "u1")


@pytest.mark.parametrize(
    ("workers", "kind"),
    [(0, "process"), (1, "thread"), pytest.param(1, "process", marks=pytest.mark.process)],
)
@pytest.mark.parametrize(
    ("decoder", "error", "text"),
    [(_decode_by_file, ConfigError, "ulimit -n"), (_take_memory, MemoryError, "Unable to allocate")],
    ids=["files", "memory"],
)
def test_a_decoder_without_files_or_memory_skips_nothing(
    workers: int, kind: str, decoder: Callable[[bytes], object], error: type[Exception], text: str
) -> None:
    """A loader that skips damaged samples ends at the first one whose decoder gets no file or no memory."""
    decode = SampleDecoder({"bin": decoder})

    def make(epoch: int, ordinal: int) -> object:
        return decode(f"k{ordinal}", [Field("bin", memoryview(b"abc"))])

    with StreamingDataLoader(FakeDataset(SAMPLES, make, on_error="skip"), BATCH, workers, worker_type=kind) as loader:
        with pytest.raises(error, match=text):
            next(iter(loader))
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
