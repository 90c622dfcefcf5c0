"""A resolver that never answers delays no close: neither of a store nor of the process that it is in."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

# Of this test alone, in a mount namespace; ports below 1024 need root, as does the namespace.
RESOLVER = "127.0.0.97"

CLOSING = """
import asyncio, time
from streamer.errors import ClosedError
from streamer.store import open_store
from streamer.store.base import Get
from streamer.manifest.model import ObjectRecord

async def main():
    store = open_store("http://streamer-silent.test/", {}, client="curl")
    record = ObjectRecord("http://streamer-silent.test/o", 9, "etag:x")
    reading = asyncio.ensure_future(store.get(Get(record, 0, 9), print))
    await asyncio.sleep(0.5)
    assert not reading.done()
    longest = 0.0
    async def beat():
        nonlocal longest
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            longest = max(longest, time.monotonic() - before)
    beating = asyncio.ensure_future(beat())
    await asyncio.sleep(0)
    begun = time.monotonic()
    await store.aclose()
    try:
        await reading
    except ClosedError:
        print(time.monotonic() - begun, longest)
    beating.cancel()

asyncio.run(main())
"""


@pytest.fixture
def _resolver() -> Iterator[None]:
    """Stands for a name server that takes questions and never answers."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        try:
            silent.bind((RESOLVER, 53))
        except PermissionError:
            pytest.skip("a resolver's port needs root (CAP_NET_BIND_SERVICE)")
        yield


@pytest.mark.usefixtures("_resolver")
def test_close_while_a_name_is_looked_up(tmp_path: Path) -> None:
    """A store that is closed during a name look-up closes within 2 s, blocks no loop, and lets the process end:
    glibc would ask for 10 s.
    """
    conf, script = tmp_path / "resolv.conf", tmp_path / "closing.py"
    conf.write_text(f"nameserver {RESOLVER}\n")
    script.write_text(CLOSING)
    mount = f'mount --bind {conf} /etc/resolv.conf && exec "$0" "$@"'
    namespace = ["unshare", "--mount", "sh", "-c", mount]
    tried = [*namespace, "true"]
    if shutil.which("unshare") is None or subprocess.run(tried, capture_output=True, check=False).returncode:
        pytest.skip("a mount namespace of one's own needs root (CAP_SYS_ADMIN) and unshare")
    begun = time.monotonic()
    variables = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    command = [*namespace, sys.executable, str(script)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    closed_seconds, longest_turn_seconds = map(float, done.stdout.split())
    assert closed_seconds < 2
    assert longest_turn_seconds < 0.5
    assert time.monotonic() - begun < 8
