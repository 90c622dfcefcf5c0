"""Disks of tests: a tmpfs stands for a disk that is small, full or read-only; no device fails and no write is slow."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

MiB = 1 << 20


@contextlib.contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    """Mounts a tmpfs of that size; skips the test where mounting is not allowed."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        yield path
    finally:
        # Lazily: a manifest stays mapped until its last user is collected.
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def take_the_rest(disk: Path) -> None:
    """Takes every byte that is free, also what the cache gives back, as other programs on the disk do."""
    for name, length in (("others", MiB), ("crumbs", 4096)):
        with contextlib.suppress(OSError), open(disk / name, "ab", buffering=0) as file:
            while True:
                file.write(bytes(length))


def remount_read_only(disk: Path) -> None:
    """Remounts the disk read-only, as the kernel does after an error of the device."""
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
