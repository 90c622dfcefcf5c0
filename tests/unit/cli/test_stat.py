"""`streamer stat`: an engine is found without starting one, and its figures are printed.
Engines are sockets that listen and do not answer."""

import contextlib
import io
import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from streamer.cli import stat_command
from streamer.cli.connect import find_engine
from streamer.cli.status_view import StatusView
from streamer.cli.terminal import Terminal
from streamer.client import runtime_folder
from streamer.client.settings import ClientSettings
from streamer.errors import ConfigError, EngineUnavailableError


@pytest.fixture
def settings(tmp_path):
    """Makes the settings of a client with temporary cache and runtime folders."""
    return ClientSettings(cache_dir=tmp_path / "cache", runtime_dir=tmp_path)


@pytest.fixture
def listen():
    """Makes sockets that listen in place of engines, and returns their paths."""
    with contextlib.ExitStack() as stack:

        def start(path: Path) -> Path:
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(path))
            listener.listen()
            return path

        yield start


def test_an_engine_that_is_named_is_taken(settings, tmp_path):
    """An engine that is named is taken, by the option before the environment."""
    named = ClientSettings(cache_dir=tmp_path, runtime_dir=tmp_path, engine="unix:/env.sock")
    assert find_engine(Path("/option.sock"), None, named).socket_path == Path("/option.sock")
    assert find_engine(None, None, named).socket_path == Path("/env.sock")


@pytest.mark.process
def test_the_only_engine_is_found_whatever_its_cache_folder(settings, tmp_path, listen):
    """The only engine is found whatever its cache folder, and the socket of a killed one does not count."""
    other = listen(replace(settings, cache_dir=tmp_path / "of a script").socket_path)
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(settings.socket_path))
    assert find_engine(None, None, settings).socket_path == other
    assert find_engine(None, None, settings).external


@pytest.mark.process
def test_several_engines_are_listed(settings, tmp_path, listen, monkeypatch):
    """Of several engines none is guessed: the error has every socket, and the options choose one."""
    monkeypatch.setattr(runtime_folder, "ANSWER_SECONDS", 0.05)
    paths = [listen(settings.socket_path), listen(tmp_path / "engine.sock")]
    with pytest.raises(ConfigError, match=r"2 engines run in .*--cache-dir or --socket") as error:
        find_engine(None, None, settings)
    assert all(str(path) in str(error.value) for path in paths)
    assert find_engine(None, settings.cache_dir, settings).socket_path == settings.socket_path
    assert find_engine(tmp_path / "engine.sock", None, settings).socket_path == tmp_path / "engine.sock"


def test_no_engine_is_an_error_that_names_the_place(settings, tmp_path):
    """No engine is an error that names the folder searched; a plain file in place of a socket is none."""
    (tmp_path / "engine.sock").write_text("")
    with pytest.raises(EngineUnavailableError, match=rf"none listens in {tmp_path}.*--socket"):
        find_engine(None, None, settings)
    with pytest.raises(EngineUnavailableError, match="no embedded engine of the cache folder /elsewhere runs"):
        find_engine(None, Path("/elsewhere"), settings)


def test_the_figures_and_tables_are_printed():
    """`stat` prints figures and tables as plain text where the output is not a terminal."""
    out = io.StringIO()
    entry = {"dataset": "d" * 32, "url": "s3://b/", "samples": 3, "total_bytes": 10, "sessions": 1}
    stat_command.show(StatusView({"pid": 4, "datasets": [entry]}), Terminal(out, out))
    text = out.getvalue()
    assert "engine      pid 4" in text
    assert "dddddddd  s3://b/" in text
    assert "consumer" not in text
    json.dumps(text)
