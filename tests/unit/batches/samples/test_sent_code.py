"""Tests of user code that changes after workers have received it: it is compared, and a change is warned of."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from streamer.batches.samples.sent_code import MAX_BYTES, MOST_OBJECTS, SentCode
from streamer.loader.dataloader import StreamingDataLoader
from streamer.loader.dataset import StreamingDataset


class Crop:
    """Stands for a user's transform with arrays and generators of its own."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.means = np.zeros(3)
        self.generators = [np.random.default_rng(1), random.Random(1)]

    def __call__(self, sample: object) -> object:
        for generator in self.generators:
            generator.random()
        return self.size


def warnings(code: SentCode, caplog: pytest.LogCaptureFixture) -> int:
    """Returns how often the code has warned by now."""
    code.compare()
    return len(caplog.records)


def test_a_changed_attribute_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """A changed attribute of a transform, as a notebook sets it between two epochs, is warned of once."""
    crop = Crop(16)
    code = SentCode({"transform": crop})
    assert warnings(code, caplog) == 0
    crop.size = 8
    assert [warnings(code, caplog) for _ in range(3)] == [1, 1, 1]
    assert "has changed since the worker processes received it" in caplog.text


def test_a_changed_variable_of_a_function_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """A changed variable of a function that is sent by value is warned of, as a global of a notebook would be."""
    size = 16
    code = SentCode(lambda sample: sample[:size])
    assert warnings(code, caplog) == 0
    size = 8
    assert warnings(code, caplog) == 1


def test_use_is_no_change(caplog: pytest.LogCaptureFixture) -> None:
    """The use of a transform is no change of it.

    `dataset[0]` draws from generators; albumentations keeps the parameters of its last call.
    """
    # Not in the other processes of pytest: 1.5 s of CPU.
    import albumentations

    crop, flips = Crop(16), albumentations.Compose([albumentations.HorizontalFlip()])
    code = SentCode([crop, lambda sample: flips(image=sample)])
    crop(None)
    flips(image=np.zeros((4, 4, 3), np.uint8))
    assert warnings(code, caplog) == 0


def test_what_cannot_be_compared_is_not(caplog: pytest.LogCaptureFixture) -> None:
    """Large code, and an object that has taken a lock since, are not compared."""
    large, many, crop = [bytes(MAX_BYTES)], list(range(MOST_OBJECTS)), Crop(1)
    codes = [SentCode(large), SentCode(many), SentCode(crop)]
    large.append(b"x")
    many.append(0)
    crop.lock = threading.Lock()  # type: ignore[attr-defined]
    assert [warnings(code, caplog) for code in codes] == [0, 0, 0]


@pytest.mark.process
def test_a_loader_says_it_and_can_start_new_workers(
    make_dataset: Callable[..., StreamingDataset], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A loader warns of changed code at its next epoch; loading its own state starts workers with the new code.

    The state keeps the position.
    """
    crop = Crop(16)
    with StreamingDataLoader(make_dataset(folder, transform=crop), 4, 1, collate_fn=list) as loader:
        assert {size for batch in loader for size in batch} == {16}
        crop.size = 8
        assert {size for batch in loader for size in batch} == {16}
        assert caplog.text.count("has changed since the worker processes received it") == 1
        loader.load_state_dict(loader.state_dict())
        assert loader.state_dict()["epoch"] == 2
        assert {size for batch in loader for size in batch} == {8}
    assert caplog.text.count("has changed since") == 1


def test_no_workers_have_nothing_of_their_own(
    make_dataset: Callable[..., StreamingDataset], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without workers a change of the transform counts at once, and nothing is warned of."""
    crop = Crop(16)
    with StreamingDataLoader(make_dataset(folder, transform=crop), 4, 0, collate_fn=list) as loader:
        assert {size for batch in loader for size in batch} == {16}
        crop.size = 8
        assert {size for batch in loader for size in batch} == {8}
    assert "has changed" not in caplog.text


AT_EXIT = """
import atexit, sys
from streamer.batches.samples.sent_code import SentCode

size = 16

def crop(sample):
    return sample[:size]

code = SentCode([crop, lambda sample: sample])

@atexit.register
def compare():
    global size
    code.compare()
    print("before", "__file__" in globals(), code)
    size = 8
    code.compare()
    print("after", code)
"""


@pytest.mark.process
def test_the_end_of_a_script_is_no_change(tmp_path: Path) -> None:
    """A script's code is unchanged in a function of atexit, where Python has removed `__file__` of the script."""
    script = tmp_path / "script.py"
    script.write_text(AT_EXIT)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "before False SentCode(compared=True)\nafter SentCode(compared=False)\n"
    assert done.stderr.count("has changed since") == 1
