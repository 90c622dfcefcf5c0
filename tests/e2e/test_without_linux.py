"""The first page in a Python process that lacks what only Linux has: engine="inline", num_workers=0, files, tars."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Read by each Python that starts. Names as on macOS: those of the standard library's documentation with "Availability:
# Linux", and those of other systems that macOS has not. Of /proc and /sys, nothing can be opened or listed.
WITHOUT = """
import fcntl, mmap, os, select, socket, sys, time

GONE = {
    fcntl: "F_ADD_SEALS F_GET_SEALS F_SEAL_",
    mmap: "MAP_POPULATE MADV_REMOVE MADV_HUGEPAGE",
    os: "memfd_create MFD_ eventfd EFD_ pidfd_open pipe2 posix_fallocate posix_fadvise POSIX_FADV_ O_PATH O_TMPFILE"
    " splice copy_file_range sched_getaffinity",
    select: "epoll EPOLL",
    socket: "SOCK_CLOEXEC SOCK_NONBLOCK MSG_NOSIGNAL SO_PEERCRED",
    time: "CLOCK_BOOTTIME",
}
for module, starts in GONE.items():
    found = [name for name in dir(module) if name.startswith(tuple(starts.split()))]
    assert found, module
    for name in found:
        delattr(module, name)

def refuse(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith(("/proc", "/sys/")):
        raise FileNotFoundError(2, "No such file or directory", arguments[0])

sys.addaudithook(refuse)
"""
TARS = """
import tarfile
with tarfile.open("images.tar", "w") as tar:
    tar.add("images", recursive=True)
tars = StreamingDataset("images.tar", cache_dir="cache-tars", engine="inline")
print(sum(len(batch["jpg"]) for batch in StreamingDataLoader(tars, batch_size=16)), "from a tar")
growth = streamer.Growing(reuse=2, epoch_samples=96)
growing = StreamingDataset("images/", cache_dir="cache-growing", engine="inline", growing=growth)
print(sum(len(batch["jpg"]) for batch in StreamingDataLoader(growing, batch_size=16)), "of a growing dataset")
try:
    StreamingDataLoader(tars, batch_size=16, num_workers=2)
except streamer.errors.ConfigError as error:
    print(error.details["field"], error)
"""


@pytest.mark.slow
def test_the_quickstart_runs(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The quickstart runs without workers where Python lacks what only Linux has; workers are an error with advice."""
    folder = tmp_path_factory.mktemp("l")
    (folder / "sitecustomize.py").write_text(WITHOUT)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "index.md").read_text(), re.DOTALL)
    (folder / "program.py").write_text(
        "import streamer\n" + "\n".join(blocks).replace("num_workers=1", "num_workers=0") + TARS
    )
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": ".", "STREAMER_RUNTIME_DIR": str(folder / "run"), "STREAMER_ENGINE": "inline"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "64 ['cats', 'dogs']"
    assert lines[2:4] == [f"{epoch} torch.Size([16, 64, 64, 3]) torch.uint8 torch.Size([16])" for epoch in (0, 1)]
    assert lines[5] == "2 batches are left of the epoch"
    assert lines[-5:-2] == ["64 samples", "64 samples, no other process", "64 from a tar"]
    assert lines[-2] == "96 of a growing dataset"
    assert re.match(r"num_workers .*need select\.epoll.*use num_workers=0", lines[-1])


@pytest.mark.slow
def test_the_types_are_right_on_macos() -> None:
    """mypy accepts the whole package for macOS, against the standard library as its stubs describe it there."""
    cache = ROOT / ".mypy_cache" / "darwin"
    options = ["--platform", "darwin", "--cache-dir", str(cache)]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
