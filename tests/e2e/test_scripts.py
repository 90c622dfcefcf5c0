"""The script of deploy/ for torchrun, run as a process with two ranks; the scripts for SLURM are in test_slurm.py."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "sidecar_trainer.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("sidecar_trainer", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def place(example) -> Iterator[Path]:
    """Yields the example's samples as files, and a short path for sockets."""
    root = Path(tempfile.mkdtemp(prefix="scripts-"))
    for name, content in example.contents()[:80]:
        (root / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "data" / name).write_bytes(content)
    yield root
    with contextlib.suppress(OSError, ValueError):
        os.kill(service_of(root)["pid"], signal.SIGKILL)
    shutil.rmtree(root)


def environment(place: Path, **more: str) -> dict[str, str]:
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(place),
        "USER": "somebody",
        "STREAMER_CACHE_DIR": f"{place}/cache",
        "STREAMER_HTTP": "off",
        "TMPDIR": str(place),
        **more,
    }


def run(place: Path, *command: object, **more: str) -> list[dict]:
    """Runs a script to its end, and returns what the ranks printed."""
    found = subprocess.run(
        list(map(str, command)), env=environment(place, **more), cwd=place, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr[-3000:]
    return [json.loads(line) for line in found.stdout.splitlines() if line.startswith("{")]


def assert_exact(example, lines: list[dict]) -> None:
    """Checks that both ranks together had every sample once."""
    expected = 0
    for name, content in example.contents()[:80]:
        expected ^= example.fingerprint(name, content)
    assert sorted(line["rank"] for line in lines) == [0, 1]
    assert sum(line["samples"] for line in lines) == 80
    assert int(lines[0]["digest"], 16) ^ int(lines[1]["digest"], 16) == expected


def service_of(place: Path) -> dict:
    """Returns the statistics of the service that the script has started."""
    (socket,) = place.glob("run/engine.sock")
    found = subprocess.run(
        [sys.executable, "-m", "streamer", "stat", "--socket", socket, "--json"], capture_output=True, check=True
    )
    return json.loads(found.stdout)


def ends(place: Path, pid: int) -> bool:
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 60
    while (place / "run" / "engine.sock").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return True


def test_torchrun_sh_starts_one_service_for_all_jobs(place, example):
    """deploy/torchrun.sh starts one service: a second job finds it with its cache, and SIGTERM ends it."""
    (place / "streamer.toml").write_text(f"[[datasets]]\nurl = '{place}/data/'\n")
    more = {"RANKS": "2", "STREAMER_RUNTIME_DIR": f"{place}/run", "STREAMER_CONFIG": f"{place}/streamer.toml"}
    arguments = (ROOT / "deploy" / "torchrun.sh", EXAMPLE, "--url", f"{place}/data/", "--epochs", "1")
    assert_exact(example, run(place, *arguments, "--step-seconds", "0", **more))
    first = service_of(place)
    assert_exact(example, run(place, *arguments, "--step-seconds", "0", **more))
    second = service_of(place)
    assert second["pid"] == first["pid"]
    assert second["store_bytes"] == first["store_bytes"] > 0
    assert ends(place, first["pid"])
