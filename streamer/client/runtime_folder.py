"""The folder of sockets, locks and logs: the engines that listen there, and the remains of those that have ended."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import stat
import time
from pathlib import Path

from streamer.client.connection import Connection, DisconnectedError
from streamer.errors import StreamerError

# An engine of this machine answers within milliseconds; a stopped one must not delay a list.
ANSWER_SECONDS = 2.0
# Logs are kept this long, so that the failure of last week's job can still be read.
LOG_SECONDS = 7 * 86400.0
# The names that `ClientSettings.engine_id` makes.
_LOG_NAME = re.compile(r"[0-9a-f]{12}\.log")
_SOCKET_NAME = re.compile(r"[0-9a-f]{12}\.sock(?:\.(\d+))?")
_LOCK_NAME = re.compile(r"[0-9a-f]{12}\.spawn\.lock")


def find_engines(folder: Path) -> list[Path]:
    """Returns the sockets in a folder on which an engine listens, by name."""
    return [path for path in sorted(folder.glob("*.sock")) if is_listening(path)]


def is_listening(path: Path) -> bool:
    """Whether a process listens on a socket; the file of a killed engine stays."""
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(ANSWER_SECONDS)
            probe.connect(str(path))
    except (PermissionError, TimeoutError):
        return True  # it belongs to another user or is busy, so there is one
    except OSError:
        return False
    return True


def describe_engine(path: Path, token: str = "") -> str:
    """Describes an engine: its socket, and its cache folder and process if it names them."""
    try:
        with contextlib.closing(Connection(path, "", token, ANSWER_SECONDS)) as connection:
            return f"{path} (cache {connection.welcome.root}, pid {connection.welcome.pid})"
    except (DisconnectedError, StreamerError):
        return str(path)


def remove_leftovers(folder: Path) -> None:
    """Removes sockets and locks of processes of this user that are gone, and logs of a week ago."""
    remove_old_logs(folder)
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if path.lstat().st_uid != os.geteuid():
                continue
            if found := _SOCKET_NAME.fullmatch(path.name):
                # A socket that is being made is bound before it listens, under a name with its process.
                if not is_listening(path) and not (found[1] and os.path.exists(f"/proc/{found[1]}")):
                    path.unlink()
            elif _LOCK_NAME.fullmatch(path.name):
                # A process that waits for the lock finds that the file is gone, and makes another.
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                        path.unlink()
                finally:
                    os.close(descriptor)


def remove_old_logs(folder: Path) -> None:
    """Removes the logs of embedded engines that ended more than a week ago."""
    oldest = time.time() - LOG_SECONDS
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if (
                _LOG_NAME.fullmatch(path.name)
                and path.stat().st_mtime < oldest
                and not is_listening(path.with_suffix(".sock"))
            ):
                path.unlink()
