"""Unit tests start no process and no server, and what keeps time runs on a loop that the test steers."""

from __future__ import annotations

import asyncio
import multiprocessing.util
import os
import socket
import subprocess
from collections.abc import Callable

import pytest

from tests.unit.steered_loop import SteeredLoop

# What starts a process, and what makes a socket a server.
STARTS: tuple[tuple[object, str], ...] = (
    (subprocess.Popen, "__init__"),
    (os, "fork"),
    (os, "posix_spawn"),
    (multiprocessing.util, "spawnv_passfds"),
    (socket.socket, "listen"),
)


@pytest.fixture(autouse=True)
def _no_process_and_no_server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that starts one says so: `make unit` leaves it out."""
    if any(request.node.get_closest_marker(marker) is not None for marker in ("process", "slow")):
        return
    for owner, name in STARTS:
        monkeypatch.setattr(owner, name, _refuse(name))


def _refuse(name: str) -> Callable[..., None]:
    def refused(*arguments: object, **more: object) -> None:
        raise AssertionError(f"{name} starts a process or a server: mark this test with @pytest.mark.process")

    return refused


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> SteeredLoop:
    """A loop that waits for nothing."""
    steered = SteeredLoop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: steered)
    return steered
