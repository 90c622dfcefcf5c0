"""A client checks which user listens at an engine's socket before it sends anything; sockets and users are real."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streamer.cli.connect import find_engine
from streamer.client.connection import Connection, DisconnectedError
from streamer.client.launcher import _make_runtime_dir
from streamer.client.settings import ClientSettings
from streamer.errors import ConfigError, EngineUnavailableError

NOBODY = 65534
pytestmark = pytest.mark.process
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="acts as another user: needs root")


@contextmanager
def _listening(path: Path, uid: int = 0) -> Iterator[list[bytes]]:
    """Stands for an engine of another user: it listens and keeps what was sent, and answers nothing."""
    received: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        if uid:
            os.chown(path, uid, uid)
            os.seteuid(uid)
        try:
            listener.listen()
        finally:
            if uid:
                os.seteuid(0)

        def serve() -> None:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(5)
                received.append(connection.recv(1 << 16))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield received
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@as_root
@pytest.mark.parametrize("external", [False, True])
def test_nothing_is_said_to_another_user(tmp_path: Path, external: bool) -> None:
    """A client sends neither the job's name nor the token to a socket at which another user listens."""
    path = tmp_path / "engine.sock"
    tmp_path.chmod(0o1777)
    with (
        _listening(path, NOBODY) as received,
        pytest.raises(EngineUnavailableError, match=r"user 65534 listens at .* nothing was sent"),
    ):
        Connection(path, "job", "token", external=external)
    assert received == [b""]


@as_root
def test_the_owner_of_a_configured_folder_is_trusted(tmp_path: Path) -> None:
    """A configured socket is trusted if its listener owns the folder, or the socket where only some may write."""
    for number, (owner, mode) in enumerate([(NOBODY, 0o755), (0, 0o2770)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        folder.chmod(mode)
        os.chown(folder, owner, 0)
        with _listening(folder / "engine.sock", NOBODY) as received, pytest.raises(DisconnectedError):
            Connection(folder / "engine.sock", "job", "token", 2.0, external=True)
        assert b"token" in received[0]
        other = tmp_path / f"own-{number}"
        folder.rename(other)
        (other / "engine.sock").unlink()
        with (
            _listening(other / "engine.sock", NOBODY) as received,
            pytest.raises(EngineUnavailableError, match=r"belongs to uid 65534|user 65534 listens at"),
        ):
            Connection(other / "engine.sock", "job", "token", 2.0)
        assert received in ([], [b""])


def test_no_link_is_followed_to_the_folder_of_the_user(tmp_path: Path) -> None:
    """A link in the place of the user's own runtime folder is refused; a configured folder may be a link."""
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    with _listening(tmp_path / "there" / "engine.sock") as received:
        with pytest.raises(EngineUnavailableError, match="is a link"):
            Connection(tmp_path / "link" / "engine.sock", "job", "token")
        with pytest.raises(ConfigError, match="STREAMER_RUNTIME_DIR"):
            _make_runtime_dir(tmp_path / "link")
        with pytest.raises(DisconnectedError):
            Connection(tmp_path / "link" / "engine.sock", "job", "token", 2.0, external=True)
    assert b"token" in received[0]


@as_root
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    """A runtime folder of another user is refused, also by `stat`, `top` and `doctor`."""
    os.chown(tmp_path, NOBODY, NOBODY)
    with pytest.raises(EngineUnavailableError, match="belongs to uid 65534"):
        Connection(tmp_path / "engine.sock", "job", "token")
    with pytest.raises(ConfigError, match="belongs to uid 65534"):
        _make_runtime_dir(tmp_path)


def test_a_socket_that_was_found_is_not_a_configured_one(tmp_path: Path) -> None:
    """A socket that was found in the runtime folder does not count as configured; one that the user names does."""
    settings = ClientSettings(cache_dir=tmp_path / "cache", runtime_dir=tmp_path)
    with _listening(tmp_path / "a.sock"):
        assert not find_engine(None, None, settings).is_configured
    assert find_engine(tmp_path / "a.sock", None, settings).is_configured
