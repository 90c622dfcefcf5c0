"""The scripts for SLURM on a real cluster: as many engines and trainers as they say, on the nodes that they say.

    make test-docker TESTS=tests/e2e/test_slurm.py

Needs Debian's packages slurmctld, slurmd, slurm-client and munge, and root. All nodes are this machine, so that the
folders of a node are told apart by its name: two programs of the PATH see to that, and write down what was started.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e import slurm_cluster
from tests.e2e.slurm_cluster import Cluster

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(slurm_cluster.missing()), reason=slurm_cluster.missing() or "SLURM is here"),
]

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "sidecar_trainer.py"
SAMPLES = 80
PROGRAM = """#!/usr/bin/env bash
echo "{name} $SLURMD_NODENAME $SLURM_CPUS_PER_TASK" >>{place}/started
export STREAMER_CACHE_DIR={place}/$SLURMD_NODENAME/cache STREAMER_RUNTIME_DIR={place}/$SLURMD_NODENAME/run
export STREAMER_ENGINE=${{STREAMER_ENGINE:+unix:$STREAMER_RUNTIME_DIR/engine.sock}}
exec {program} "$@"
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # Not tmp_path: munged refuses folders that others may write to, and sockets need short names.
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o755)
    with slurm_cluster.running(folder) as started:
        yield started
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("sidecar_trainer", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def place(example) -> Iterator[Path]:
    """Yields the example's samples as files, a trainer, a configuration, and the programs of the PATH."""
    root = Path(tempfile.mkdtemp(prefix="job-"))
    for name, content in example.contents()[:SAMPLES]:
        (root / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "data" / name).write_bytes(content)
    (root / "train.py").write_text(
        f"import os, sys\nsys.path.insert(0, {str(EXAMPLE.parent)!r})\nimport sidecar_trainer\n"
        "os.environ['RANK'] = os.environ['SLURM_PROCID']  # for what it prints\n"
        f"sidecar_trainer.train({f'{root}/data/'!r}, 1, 0.0)\n"
    )
    (root / "streamer.toml").write_text(f"[[datasets]]\nurl = '{root}/data/'\n")
    programs = {"streamer": Path(sys.executable).with_name("streamer"), "python": sys.executable}
    (root / "bin").mkdir()
    for name, program in programs.items():
        (root / "bin" / name).write_text(PROGRAM.format(name=name, place=root, program=program))
        (root / "bin" / name).chmod(0o755)
    yield root
    shutil.rmtree(root, onerror=raise_unless_gone)


def raise_unless_gone(
    function: Callable[..., object], path: str, error: tuple[type[BaseException], BaseException, object]
) -> None:
    """Raises an error of removing a file, unless an engine that ends after its job has removed the file itself."""
    if not isinstance(error[1], FileNotFoundError):
        raise error[1]


def run(cluster: Cluster, place: Path, script: str, *options: str) -> list[dict]:
    """Runs a job to its end, and returns what its ranks printed."""
    variables = {"PATH": f"{place}/bin:{os.environ['PATH']}", "HOME": str(place), "USER": "somebody"}
    path, sizes = ROOT / "deploy" / "slurm" / script, ("--ntasks-per-node=2", "--gpus-per-node=2", "--cpus-per-task=3")
    said = cluster.run(path, f"--chdir={place}", *sizes, *options, variables=variables, seconds=300)
    assert "Warning" not in said
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def assert_exact(example, lines: list[dict], ranks: int) -> None:
    """Checks that all ranks together had every sample once."""
    combined = expected = 0
    for name, content in example.contents()[:SAMPLES]:
        expected ^= example.fingerprint(name, content)
    for line in lines:
        combined ^= int(line["digest"], 16)
    assert sorted(line["rank"] for line in lines) == list(range(ranks))
    assert sum(line["samples"] for line in lines) == SAMPLES
    assert combined == expected


@pytest.mark.parametrize("script", ["train.sbatch", "train-sidecar.sbatch"])
def test_a_job_on_two_nodes(cluster: Cluster, place: Path, example, script: str) -> None:
    """The scripts for two nodes start two trainers a node with their CPUs, and read each sample once.

    With services there is one a node, which ends with the job.
    """
    lines = run(cluster, place, script, "--nodes=2", "--nodelist=n[0-1]")
    assert_exact(example, lines, ranks=4)
    started = Counter((place / "started").read_text().splitlines())
    engines = {f"streamer n{node} 3": 1 for node in range(2)} if script == "train-sidecar.sbatch" else {}
    assert started == {**engines, "python n0 3": 2, "python n1 3": 2}
    assert not list(place.glob("n*/run/engine.sock"))


def test_a_job_whose_engines_are_peers(cluster: Cluster, place: Path, example) -> None:
    """The script for peers starts a service on each node that SLURM names, and reads each sample once.

    Here it is one node, because all of them would listen at one address.
    """
    lines = run(cluster, place, "train-peers.sbatch", "--nodes=1", "--nodelist=localhost")
    assert_exact(example, lines, ranks=2)
    started = Counter((place / "started").read_text().splitlines())
    assert started == {"streamer localhost 3": 1, "python localhost 3": 2}
    assert not list(place.glob(".streamer-peers-*"))
