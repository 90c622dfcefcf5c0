"""Trainers that are no tidy script: little shared memory, notebooks, code from stdin, an event loop that runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

# 24 batches of 8 MB: each is half of the /dev/shm below, and the ring holds some of them.
TRAINER = """
import numpy as np
from streamer.loader.dataloader import StreamingDataLoader
from tests.fake_dataset import FakeDataset

scale = 3

class Point:
    def __init__(self, x):
        self.x = x

def make(epoch, ordinal):
    return {"x": np.full(1_000_000, ordinal, np.uint8), "y": (lambda n: n * scale)(ordinal)}

def train():
    with StreamingDataLoader(FakeDataset(48, lambda e, o: make(e, o)), 8, 2, pin_memory=False) as loader:
        for epoch in range(4):
            for number, batch in enumerate(loader):
                ordinals = [(8 * number + n + epoch) % 48 for n in range(8)]
                assert batch["x"][:, -1].tolist() == ordinals
                assert batch["y"].tolist() == [scale * n for n in ordinals]
        assert loader.stats().respawns == 0
    with StreamingDataLoader(FakeDataset(8, make), 4, 1, collate_fn=lambda samples: Point(samples[0]["y"])) as loader:
        assert [type(batch) is Point and batch.x for batch in loader] == [0, 12]
    return "trained"
"""


def run(command: list[str], folder: Path, text: str | None = None) -> str:
    """Runs it; gives what it printed."""
    # One thread each: the cores are shared with the rest of the tests. The checkout has the fakes.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, cwd=folder, env=environment, timeout=240, check=False
    )
    # On a busy machine the workers may need more than the 1.5 s after which the loader says what it waits for.
    errors = [line for line in done.stderr.splitlines() if not line.startswith("waiting for ")]
    assert (done.returncode, errors) == (0, [])
    return done.stdout.strip()


@pytest.mark.slow
def test_sixteen_mebibytes_of_dev_shm(tmp_path):
    """A trainer with 16 MiB of /dev/shm passes 200 MB of batches, since its ring is a memfd."""
    script = tmp_path / "train.py"
    script.write_text(TRAINER + "\nimport os\nprint(os.statvfs('/dev/shm').f_blocks * 4096 >> 20, train())\n")
    mount = 'mount -t tmpfs -o size=16m tmpfs /dev/shm && exec "$0" "$@"'
    namespace = ["unshare", "--mount", "sh", "-c"]
    tried = [*namespace, mount, "true"]
    if shutil.which("unshare") is None or subprocess.run(tried, capture_output=True, check=False).returncode:
        pytest.skip("a mount namespace of one's own needs root (CAP_SYS_ADMIN) and unshare")
    assert run([*namespace, mount, sys.executable, str(script)], tmp_path) == "16 trained"


@pytest.mark.slow
def test_code_from_stdin(tmp_path):
    """A trainer whose code comes from stdin uses workers, although it has no `__main__` that they could import."""
    assert run([sys.executable, "-"], tmp_path, TRAINER + "\nprint(train())\n") == "trained"


NOTEBOOK = """
import asyncio, code, sys

cells = sys.stdin.read().split("# %%")

async def kernel():
    # As a kernel does it: cell after cell, compiled under names that no file has, on a thread whose loop runs.
    shell = code.InteractiveInterpreter({"__name__": "__main__"})
    for number, cell in enumerate(cells):
        exec(compile(cell, f"<cell {number}>", "exec"), shell.locals)

asyncio.run(kernel())
"""


@pytest.mark.slow
def test_notebook(tmp_path):
    """Notebook cells that use and change definitions of earlier cells train on a thread with a running event loop."""
    again = """
    # %%
    scale = 5

    def make(epoch, ordinal):
        return {"x": np.full(1_000_000, ordinal, np.uint8), "y": ordinal * scale}
    # %%
    print(train())
    """
    (tmp_path / "kernel.py").write_text(NOTEBOOK)
    cells = TRAINER.replace("[0, 12]", "[0, 4 * scale]") + "# %%\nprint(train())\n" + textwrap.dedent(again)
    assert run([sys.executable, str(tmp_path / "kernel.py")], tmp_path, cells) == "trained\ntrained"
