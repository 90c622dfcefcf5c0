"""DALI, in an environment of its own, reads encoded images through `DaliSource`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.formats.library_environment import library_python
from tests.pages.environments import ROOT

COUNT = 50
# A gigabyte; CPU pipelines need no GPU.
PACKAGES = (
    "nvidia-dali-cuda120==2.4.0",
    "nvidia-nvimgcodec-cu12",
    "nvtx",
    "makefun",
    "optree",
    "astunparse",
    "gast",
    "six",
    "wheel",
)


@pytest.mark.formats
@pytest.mark.timeout(1800)
def test_two_epochs_are_those_of_dalis_own_reader(tmp_path: Path) -> None:
    """Two epochs through `DaliSource` have each image once, with the pixels of DALI's own reader.

    Batches are of 16, the last one of 2; DALI's queue holds some while the loader makes the next.
    """
    from PIL import Image

    drawn, folder = np.random.default_rng(0), tmp_path / "jpegs"
    folder.mkdir()
    for number in range(COUNT):
        edges = drawn.integers(50, 200, 2)
        Image.fromarray(drawn.integers(0, 255, (*edges, 3), np.uint8)).save(folder / f"{number:03}.jpg")
    script = Path(__file__).parent / "make" / "dali_epochs.py"
    done = subprocess.run(
        [library_python(*PACKAGES), script, folder],
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "STREAMER_RUNTIME_DIR": str(tmp_path / "run")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == [f"{COUNT} {COUNT} {COUNT}"] * 2
