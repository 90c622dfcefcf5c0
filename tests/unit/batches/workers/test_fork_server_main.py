"""Tests of the fork server's process: imports and threads of the workers forked from it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from streamer.batches.workers import fork_server_main

PROGRAM = """
import sys
from streamer.batches.workers import fork_server_main as server
from streamer.batches.workers.fork_protocol import ProcessContext

server.Imports().add(server._ALWAYS)
before = set(sys.modules)
server._renew(ProcessContext(b"", [], {}))
print(sorted(set(sys.modules) - before))
"""


@pytest.mark.process
def test_a_fork_imports_nothing_to_seed_its_generators() -> None:
    """A forked worker imports nothing to seed its generators.

    Imports after the fork are memory of each worker: numpy.random was 6.3 MB.
    """
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("variable", "threads"), [(b"", 1), (b"4", 4), (b"4,2", 4), (b" 3 , 1", 3), (b"0", 1), (b"many", 1), (b"\xff", 1)]
)
def test_a_list_of_threads(variable: bytes, threads: int) -> None:
    """OMP_NUM_THREADS may be a list, for nested regions, of which the first number counts.

    Regression: a worker ended over one.
    """
    assert fork_server_main._threads(variable) == threads
