"""What a started process gets from its parent: the interpreter, the debugger's hooks and the standard descriptors."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import types
from collections.abc import Iterator

import pytest

from streamer.base.child import find_interpreter, skip_debugger
from streamer.errors import ConfigError


def test_a_frozen_program_is_no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen program is refused as interpreter, because it would run itself again with streamer's arguments."""
    assert find_interpreter() == sys.executable
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(ConfigError, match=r'engine="inline"\) with num_workers=0'):
        find_interpreter()


@pytest.mark.parametrize("value", ["", None])
def test_an_embedded_interpreter_is_looked_for(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    """A program that embeds Python gets the installed interpreter, or an error that says to set sys.executable."""
    monkeypatch.setattr(sys, "executable", value)
    assert os.access(find_interpreter(), os.X_OK)
    monkeypatch.setattr("streamer.base.child.sysconfig.get_path", lambda _: None)
    monkeypatch.setattr("streamer.base.child.sysconfig.get_config_var", lambda _: None)
    monkeypatch.setattr(sys, "exec_prefix", "/nowhere")
    with pytest.raises(ConfigError, match=r"set sys\.executable"):
        find_interpreter()


def test_a_debugger_is_kept_out_of_what_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes start while pydevd skips its patch, because it puts itself before every Python that is started."""
    with skip_debugger():
        pass
    skipped = []

    @contextlib.contextmanager
    def skip() -> Iterator[None]:
        """Stands for pydevd's context manager: it notes when it is entered and left, and patches nothing."""
        skipped.append("begun")
        yield
        skipped.append("ended")

    pydevd = types.ModuleType("_pydev_bundle.pydev_monkey")
    pydevd.skip_subprocess_arg_patch = skip  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, pydevd.__name__, pydevd)
    with skip_debugger():
        assert skipped == ["begun"]
    assert skipped == ["begun", "ended"]


@pytest.mark.process
def test_closed_standard_descriptors_are_filled() -> None:
    """Closed standard descriptors are opened on /dev/null, as a socket of number 1 would get a library's output."""
    program = (
        "import os; from streamer.base.child import open_standard_descriptors as fill; fill(); fill()\n"
        "assert all(os.fstat(one) == os.stat(os.devnull) for one in (0, 1)); os._exit(os.pipe()[0])"
    )
    command = ["sh", "-c", 'exec "$0" "$@" <&- >&-', sys.executable, "-c", program]
    assert subprocess.run(command, check=False).returncode == 3
