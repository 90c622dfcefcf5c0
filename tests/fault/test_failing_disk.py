"""A cache disk whose reads fail: every sample comes right, none is skipped for it, and little is fetched again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(900)]

HERE = Path(__file__).parent
FILES, BYTES = 2000, 12_000


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler for the library whose reads fail")
    library = tmp_path_factory.mktemp("shim") / "failing_disk.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(HERE / "failing_disk.c"), "-ldl"]
    subprocess.run(command, check=True)
    return library


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, random = tmp_path_factory.mktemp("data"), np.random.default_rng(5)
    for number in range(FILES):
        path = root / f"{number % 2}" / f"{number:05}.bin"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(random.bytes(BYTES))
    return root


@dataclass
class Run:
    """Jobs of `failing_disk_job.py` on a disk whose reads fail by a preloaded library."""

    shim: Path
    data: Path
    folder: Path

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    def __call__(self, permille: int, epochs: int, **variables: str) -> tuple[dict[str, Any], str]:
        """Runs a job; returns what it prints, and what its user reads."""
        environment = {
            **os.environ,
            **variables,
            "LD_PRELOAD": str(self.shim),
            "FAILING_DISK": str(permille),
            "FAILING_UNDER": str(self.cache),
            "STREAMER_RUNTIME_DIR": str(self.folder / "r"),
            "PYTHONPATH": str(HERE.parent.parent),
        }
        command = [sys.executable, str(HERE / "failing_disk_job.py"), str(self.data), str(self.cache), str(epochs), "2"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout), done.stderr


@pytest.fixture
def run(shim: Path, data: Path) -> Iterator[Run]:
    # Not below tmp_path: the names of sockets are short.
    with tempfile.TemporaryDirectory(prefix="streamer-disk-") as folder:
        yield Run(shim, data, Path(folder))


def test_reads_that_fail_now_and_then_cost_nothing(run: Run, data: Path) -> None:
    """Cache reads of which 1 % fail (of 100,000) give every sample right, and little is fetched again:
    at most a tenth of the bytes; calls end with EIO or early.
    """
    found, said = run(10, epochs=50)
    assert (found["read"], found["distinct"], found["wrong"], found["skipped"]) == (50 * FILES, FILES, 0, 0)
    assert found["fetched"] <= 1.1 * FILES * BYTES
    assert said.count("\n") < 10, said


def test_a_disk_that_cannot_be_read_is_given_up(run: Run) -> None:
    """On a cache disk of which every read fails, chunks pass through memory, and one line says so."""
    found, said = run(1000, epochs=3)
    assert (found["read"], found["distinct"], found["wrong"], found["skipped"]) == (3 * FILES, FILES, 0, 0)
    assert said.count("all chunks pass through memory") == 1, said


def test_bad_sectors_are_passed_by(run: Run) -> None:
    """Chunks whose files cannot be read are kept in memory, and the disk stays in use for the others.
    Ten files of a hundred cannot be read, nor can copies under their names.
    """
    run(0, epochs=1)
    names = sorted(path.name for path in run.cache.glob("chunks/*/*.chunk"))
    assert len(names) > 40
    found, said = run(1000, epochs=3, FAILING_PATHS=" ".join(names[:: len(names) // 10]))
    assert (found["read"], found["distinct"], found["wrong"], found["skipped"]) == (3 * FILES, FILES, 0, 0)
    assert "all chunks pass through memory" not in said
    assert said.count("are kept in memory") == 1, said
