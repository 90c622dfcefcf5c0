"""Refuses processes and servers in the tests that are to do without them."""

from __future__ import annotations

import functools
import multiprocessing.util
import os
import socket
import subprocess
from collections.abc import Callable

import pytest

# What starts a process, and what makes a socket a server.
_STARTS: tuple[tuple[object, str], ...] = (
    (subprocess.Popen, "__init__"),
    (os, "fork"),
    (os, "posix_spawn"),
    (multiprocessing.util, "spawnv_passfds"),
    (socket.socket, "listen"),
)
_STARTERS = ("process", "slow", "gpu")


class Guard:
    """Decides whether the running test may start a process or a server."""

    def __init__(self) -> None:
        self._refused = ""

    def watch(self) -> None:
        """Takes the place of what starts one, for good."""
        for owner, name in _STARTS:
            setattr(owner, name, self._guarded(name, getattr(owner, name)))

    def running(self, item: pytest.Item) -> None:
        """Notes the test that begins. It counts until the next one: a thread of it may come to its start late."""
        unit = item.nodeid.startswith("tests/unit/")
        refused = unit and all(item.get_closest_marker(marker) is None for marker in _STARTERS)
        self._refused = item.nodeid if refused else ""

    def _guarded(self, name: str, start: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(start)
        def guarded(*arguments: object, **more: object) -> object:
            if self._refused:
                message = f"{self._refused} starts a process or a server ({name}): mark it with @pytest.mark.process"
                raise AssertionError(message)
            return start(*arguments, **more)

        return guarded
