"""What `streamer doctor` finds in the environment of a process; missing parts are played by patches."""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
import types
from pathlib import Path

import pytest

from streamer.tools.doctor import Finding, environment
from streamer.tools.doctor.environment import environment_findings


def _found(folder: Path, **variables: str) -> dict[str, Finding]:
    return {finding.subject: finding for finding in environment_findings(folder / "run", variables)}


def test_a_usual_environment_is_one_line(tmp_path: Path) -> None:
    """A usual environment is one line of the doctor."""
    assert list(_found(tmp_path)) == ["environment"]


@pytest.mark.parametrize(
    ("variables", "subject", "state"),
    [
        ({"OMP_NUM_THREADS": "4,2"}, "OMP_NUM_THREADS", "optional"),
        ({"COMMENT": "Jos\udce9"}, "variables", "optional"),
        ({"all_proxy": "socks5h://localhost:1080"}, "proxy", "warning"),
        ({"PMIX_RANK": "3"}, "rank", "warning"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "rank", "problem"),
    ],
)
def test_variables(tmp_path: Path, variables: dict[str, str], subject: str, state: str) -> None:
    """Each unusual variable is one line in ASCII with its state."""
    (finding,) = _found(tmp_path, **variables).values()
    assert (finding.subject, finding.state) == (subject, state)
    assert str(finding).isascii()


def test_an_interpreter_that_lacks_things(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter without a module that stores need is a problem, and without one for some files a warning."""
    monkeypatch.setitem(sys.modules, "lzma", None)
    monkeypatch.setitem(sys.modules, "ssl", None)
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setitem(sys.modules, "gevent", types.ModuleType("gevent"))
    monkeypatch.setitem(sys.modules, "_pydev_bundle.pydev_monkey", types.ModuleType("pydev_monkey"))
    monkeypatch.delattr(select, "epoll")
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "euc_jp")
    found = _found(tmp_path)
    assert {subject: finding.state for subject, finding in found.items()} == {
        "interpreter": "problem",
        "select": "problem",
        "debugger": "optional",
        "lzma": "warning",
        "ssl": "problem",
        "locale": "warning",
    }
    assert "gevent has patched this process" in found["select"].advice


def test_a_process_that_lacks_things(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignored signals, closed descriptors, limits and calls that a sandbox refuses are lines of the doctor."""

    def refuse(*_: object) -> int:
        raise PermissionError

    def find_nothing() -> str:
        raise FileNotFoundError

    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        monkeypatch.setattr(os, "memfd_create", refuse)
        monkeypatch.setattr(os, "pidfd_open", refuse)
        monkeypatch.setattr(os, "getcwd", find_nothing)
        monkeypatch.setattr(environment, "_is_open", lambda number: number != 1)
        monkeypatch.setattr(environment, "find_in_home", lambda: None)
        monkeypatch.setattr(environment.linux, "mountinfo", str)
        monkeypatch.setattr(resource, "getrlimit", lambda _: (1000, 1000))
        found = _found(tmp_path)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert set(found) == {
        *("SIGCHLD", "descriptors", "working directory", "file size"),
        *("memfd_create", "pidfd_open", "mounts", "home"),
    }
    assert found["file size"].state == "problem"
    assert "standard output closed" in found["descriptors"].fact


def test_a_runtime_folder_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime folder that cannot be used is a problem, named before an engine fails over it."""
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) != tmp_path)
    assert _found(tmp_path)["runtime folder"].state == "problem"
