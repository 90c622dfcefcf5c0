"""`streamer stat`: finding an engine without starting one, and what is printed."""

import io
import json
import socket
from pathlib import Path

import pytest

from streamer.cli import stat_command
from streamer.cli.connect import found
from streamer.cli.status_view import StatusView
from streamer.cli.terminal import Terminal
from streamer.client.settings import ClientSettings
from streamer.errors import EngineUnavailableError


@pytest.fixture
def settings(tmp_path):
    return ClientSettings(cache_dir=tmp_path / "cache", runtime_dir=tmp_path)


def listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def test_an_engine_that_is_named_is_taken(settings, tmp_path):
    """The option before the environment."""
    named = ClientSettings(cache_dir=tmp_path, runtime_dir=tmp_path, engine="unix:/env.sock")
    assert found(Path("/option.sock"), named).socket_path == Path("/option.sock")
    assert found(None, named).socket_path == Path("/env.sock")


def test_otherwise_the_users_service_then_the_embedded_engine(settings, tmp_path):
    """Whichever socket is there; none is started, so `external` is set."""
    listen(settings.socket_path)
    assert found(None, settings).socket_path == settings.socket_path
    assert found(None, settings).external
    listen(tmp_path / "engine.sock")
    assert found(None, settings).socket_path == tmp_path / "engine.sock"


def test_no_engine_is_an_error_that_names_the_places(settings, tmp_path):
    """A plain file in the place of a socket is none."""
    (tmp_path / "engine.sock").write_text("")
    with pytest.raises(EngineUnavailableError, match="--socket"):
        found(None, settings)


def test_the_figures_and_tables_are_printed():
    """Plain when not a terminal."""
    out = io.StringIO()
    entry = {"dataset": "d" * 32, "url": "s3://b/", "samples": 3, "total_bytes": 10, "sessions": 1}
    stat_command.show(StatusView({"pid": 4, "datasets": [entry]}), Terminal(out, out))
    text = out.getvalue()
    assert "engine      pid 4" in text
    assert "dddddddd  s3://b/" in text
    assert "consumer" not in text
    json.dumps(text)
