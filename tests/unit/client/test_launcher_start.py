"""The start of an engine ends in a bounded time, with a real program in the place of Python."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from streamer.client import launcher
from streamer.client.settings import ClientSettings
from streamer.errors import EngineUnavailableError


@pytest.mark.process
def test_a_start_that_does_not_end_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that hangs, with another program in the place of Python, is ended by an error that names the program."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(launcher, "START_SECONDS", 0.2)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "r"))
    monkeypatch.setenv("STREAMER_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(EngineUnavailableError, match=rf"{program} -m streamer.service` neither listens nor ends"):
        launcher.connect(ClientSettings.from_environment())
