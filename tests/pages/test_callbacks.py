"""examples/stall_callbacks.py as a process with the real TensorBoard and W&B, both offline."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.formats.library_environment import library_python
from tests.pages.environments import ROOT

pytestmark = [pytest.mark.pages, pytest.mark.timeout(900)]

# With what they ask for and this environment has not.
TENSORBOARD = ("tensorboard==2.21.0", "tensorboard-data-server", "absl-py", "markdown")
WANDB = ("wandb==0.31.0", "gitpython", "gitdb", "smmap", "sentry-sdk", "xxhash")
READ_EVENTS = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
tags = {tag: [[e.step, e.value] for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
text = [events.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in events.Tags()["tensors"]]
print(json.dumps([tags, text]))
"""


def run(python: Path, folder: Path, *command: str, **variables: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "STREAMER_RUNTIME_DIR": str(folder / "run"), **variables}
    done = subprocess.run(
        [str(python), *command], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "the stall report failed" not in done.stderr
    return done.stdout


def test_tensorboard_gets_the_figures(tmp_path: Path) -> None:
    """The callback for TensorBoard writes stall shares at the trainer's steps, and the bottleneck in words."""
    python = library_python(*TENSORBOARD)
    run(python, tmp_path, str(ROOT / "examples" / "stall_callbacks.py"), "--to", "tensorboard")
    scalars, texts = json.loads(run(python, tmp_path, "-c", READ_EVENTS, "runs").splitlines()[-1])
    shares = scalars["stall/share"]
    assert len(shares) >= 2
    assert [step for step, _ in shares] == sorted(step for step, _ in shares)
    assert all(0 <= share <= 1 for _, share in shares)
    assert shares[-1][0] > shares[0][0]
    assert any("transform" in text for text in texts)


def test_wandb_gets_the_figures(tmp_path: Path) -> None:
    """The callback for W&B writes a row per report to an offline run, with share and bottleneck."""
    python = library_python(*WANDB)
    program = str(ROOT / "examples" / "stall_callbacks.py")
    run(python, tmp_path, program, "--to", "wandb", WANDB_MODE="offline", WANDB_DIR=str(tmp_path), HOME=str(tmp_path))
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    content = file.read_bytes()
    assert content.count(b"stall/share") >= 2
    assert b"stall/bottleneck" in content
    assert b"transform" in content
