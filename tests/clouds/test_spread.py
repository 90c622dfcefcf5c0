"""Connections to a store whose name has several addresses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clouds import spread
from tests.fault.namespaces import as_root

pytestmark = [pytest.mark.clouds, as_root]

SECONDS = 8.0


@pytest.fixture
def namespace() -> Iterator[str]:
    """A network namespace whose hosts file gives one name eight addresses, all of them its own."""
    name = f"st{os.getpid()}-spread"
    folder = Path("/etc/netns") / name
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        for address in spread.ADDRESSES:
            subprocess.run(["ip", "-n", name, "addr", "add", f"{address}/32", "dev", "lo"], check=True)
        folder.mkdir(parents=True)
        lines = "".join(f"{address} {spread.NAME}\n" for address in spread.ADDRESSES)
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{lines}")
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)
        shutil.rmtree(folder, ignore_errors=True)


def _read(namespace: str, slow: int) -> dict[str, float | dict[str, int]]:
    command = ["ip", "netns", "exec", namespace, sys.executable, "-m", "tests.clouds.spread", str(SECONDS), str(slow)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    print(done.stdout)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.timing("its subject is how long reads take while one address is slow")
def test_one_slow_address_of_eight(namespace: str) -> None:
    """Connections go to all eight addresses of a store's name, so one slow address slows reads by a tenth at most:
    a duplicate and a retry reach another address than the slow one.
    """
    quick, slow = _read(namespace, 0), _read(namespace, 1)
    for outcome in (quick, slow):
        assert set(outcome["connections"]) == set(spread.ADDRESSES)  # type: ignore[arg-type]
    assert slow["reads"] >= 0.9 * quick["reads"]  # type: ignore[operator]
    assert slow["p99_seconds"] <= 0.3  # type: ignore[operator]
