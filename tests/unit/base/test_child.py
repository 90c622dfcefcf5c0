"""Child processes, started for real: their environment, how they end, and the pauses before the next start."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streamer.base import child as children
from streamer.base.child import (
    Child,
    ConnectedChild,
    RestartPauses,
    describe_exit,
    import_paths,
    make_environment,
    whole_environment,
)

SECONDS = 60.0
Start = Callable[[str], ConnectedChild]
_HEAD = """\
import os, sys
from streamer.base.message_socket import MessageSocket
end = MessageSocket.adopt(int(sys.argv[1]))
"""


def test_paths_of_other_types_are_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths and bytes in `sys.path` reach a child as text; other types are left out, as by the interpreter."""
    monkeypatch.setattr(sys, "path", ["/a", Path("/b"), b"/c", None])
    assert import_paths() == ["/a", "/b", "/c"]
    assert make_environment({})["PYTHONPATH"] == "/a:/b:/c"


def test_only_a_child_for_the_users_code_gets_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that runs none of the user's code gets the interpreter's and its libraries' variables, no credentials."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    assert "AWS_SECRET_ACCESS_KEY" not in make_environment({"OMP_NUM_THREADS": "1"})
    assert whole_environment({"OMP_NUM_THREADS": "1"})["AWS_SECRET_ACCESS_KEY"] == "hidden"


def test_a_removed_folder_does_not_prevent_a_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A child starts from a working folder that was removed: the relative entry of `sys.path` stays relative."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    monkeypatch.setattr(sys, "path", ["", "/a"])
    gone.rmdir()
    assert make_environment({})["PYTHONPATH"] == ":/a"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts programs that have their socket as `end`, and ends those that a test has not ended."""
    started: list[ConnectedChild] = []

    def start(program: str) -> ConnectedChild:
        module = f"program_{len(started)}"
        (tmp_path / f"{module}.py").write_text(_HEAD + program)
        paths = os.pathsep.join([str(tmp_path), make_environment({})["PYTHONPATH"]])
        started.append(ConnectedChild(module, environment={**make_environment({}), "PYTHONPATH": paths}))
        return started[-1]

    yield start
    for child in started:
        child.end()


@pytest.fixture(params=["with pidfd", "without pidfd"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways in which a kernel tells that a process has ended."""
    if request.param == "without pidfd":
        monkeypatch.setattr(children, "_open_pidfd", lambda pid: -1)


@pytest.mark.process
@pytest.mark.usefixtures("kernel")
def test_a_child_ends_by_itself_in_its_grace(start: Start) -> None:
    """A child that exits within its grace period is not killed and keeps its exit code; ending it twice is no error."""
    child = start("end.send(b'ready')\nend.receive()\nsys.exit(3)")
    child.socket.set_blocking(True)
    assert child.socket.receive() == (b"ready", [])
    child.socket.send(b"leave")
    assert child.end(SECONDS) == 3
    assert child.end(SECONDS) == 3
    assert child.exit_descriptor == -1


@pytest.mark.process
@pytest.mark.usefixtures("kernel")
def test_a_child_that_hangs_is_killed(start: Start) -> None:
    """A child that does not exit within its grace period is killed, even if it is stopped."""
    child = start("end.receive()")
    os.kill(child.pid, signal.SIGSTOP)
    assert not child.wait(0.01)
    assert child.end(0.01) == -signal.SIGKILL


@pytest.mark.process
def test_a_kill_does_not_lose_what_a_crash_has_told(start: Start) -> None:
    """A child that crashed keeps its exit code and peak memory until it is reaped, even if it is killed afterwards."""
    child = start("os.abort()")
    assert child.wait(SECONDS)
    child.kill()
    code, peak_bytes = child.reap()
    assert code == -signal.SIGABRT
    assert peak_bytes > 1 << 20
    child.socket.close()


@pytest.mark.process
def test_a_child_that_does_not_start_leaves_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that cannot be started raises the error of the start and leaves no descriptor open."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        ConnectedChild("streamer", environment={})
    with pytest.raises(FileNotFoundError):
        Child("streamer", [], environment={})
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_end_is_told_in_words() -> None:
    """The text about an exit names the signal, or gives the exit code and the log that has the reason."""
    assert describe_exit(-9) == "killed by SIGKILL"
    assert describe_exit(-40) == "killed by signal 40"
    assert describe_exit(3) == "exit code 3"
    assert describe_exit(3, log="the engine's log") == "exit code 3, see the engine's log"


def test_children_that_are_of_no_use_start_less_and_less_often() -> None:
    """The pause before a restart doubles up to 60 s with each useless child; a useful child is replaced at once."""
    pauses = RestartPauses()
    assert [pauses.count_end(useful=False) for _ in range(9)] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert pauses.useless == 9
    assert pauses.count_end(useful=True) == 0
    assert pauses.count_end(useful=False) == 1
