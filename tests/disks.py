"""Disks of a test, which are full, small or read-only."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

MiB = 1 << 20


@contextlib.contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    """A tmpfs of that size; skipped where mounting is not allowed."""
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
    """Other programs take every byte that is free, also what the cache gives back."""
    for name, length in (("others", MiB), ("crumbs", 4096)):
        with contextlib.suppress(OSError), open(disk / name, "ab", buffering=0) as file:
            while True:
                file.write(bytes(length))


def remount_read_only(disk: Path) -> None:
    """As the kernel does after an error of the device."""
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
