"""Jobs that meet a limit of their process end with a ConfigError that names it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

JOB = """
import os, resource, sys
from streamer import StreamingDataLoader, StreamingDataset
from streamer.errors import StreamerError

def leave_descriptors(count):
    used = set(map(int, os.listdir("/proc/self/fd")))
    while (opened := os.open("/dev/null", os.O_RDONLY)) < max(used):
        pass
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 1 + count, 4096))

def leave_address_space(count):
    taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + count, taken + count))

def train(limit, early):
    dataset = StreamingDataset(sys.argv[1], cache_dir=sys.argv[2])
    if early:
        limit()
    loader = StreamingDataLoader(dataset, batch_size=2, num_workers=2)
    batches = iter(loader)
    next(batches)
    if not early:
        limit()
    for _ in batches:
        pass
    for _ in loader:
        pass

if __name__ == "__main__":
    try:
        train(eval(sys.argv[3]), eval(sys.argv[4]))
    except StreamerError as error:
        print(type(error).__name__, error.details.get("field"))
    sys.stdout.flush()
    os._exit(0)
"""


def ended(tmp_path: Path, limit: str, early: bool, cwd: str | None = None) -> tuple[str, str]:
    """What a job under a limit prints, and its standard error."""
    for number in range(40):
        path = tmp_path / "data" / "a" / f"{number:02}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(1000))
    job = tmp_path / "job.py"
    job.write_text(JOB)
    arguments = [str(tmp_path / "data"), str(tmp_path / "cache"), limit, str(early)]
    # As short as the socket's path must be.
    environment = {**os.environ, "STREAMER_RUNTIME_DIR": str(tmp_path / "r"), "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [sys.executable, str(job), *arguments],
        capture_output=True,
        text=True,
        check=True,
        cwd=cwd,
        env=environment,
    )
    return done.stdout.strip(), done.stderr


@pytest.mark.parametrize(
    ("left", "early"), [(1, True), (4, True), (8, True), (16, True), (24, True), (0, False), (2, False)]
)
def test_a_full_table_of_descriptors(tmp_path: Path, left: int, early: bool) -> None:
    """A full table of descriptors ends a job with ConfigError that names RLIMIT_NOFILE, whenever it fills up:
    while workers start, while the engine is asked, or when a worker sends the memory of a batch.
    """
    told, _ = ended(tmp_path, f"lambda: leave_descriptors({left})", early)
    assert told == "ConfigError RLIMIT_NOFILE"


def test_no_room_for_a_thread(tmp_path: Path) -> None:
    """A thread whose stack does not fit into the address space raises ConfigError that names the limit."""
    told, _ = ended(tmp_path, "lambda: leave_address_space(16 << 20)", True)
    assert told in ("ConfigError RLIMIT_NPROC", "ConfigError RLIMIT_AS")


def test_a_working_directory_that_is_no_utf8(tmp_path: Path) -> None:
    """A job in a working directory whose name is not UTF-8 trains as always: workers are sent the name as bytes."""
    folder = os.fsencode(tmp_path) + b"/b\xffd"
    os.mkdir(folder)
    told, said = ended(tmp_path, "lambda: None", True, os.fsdecode(folder))
    assert told == ""
    assert "Traceback" not in said
