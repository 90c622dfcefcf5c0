"""Finds the engines that listen in the runtime folder, and removes the sockets, locks and logs of those that ended.

The commands that look for a running engine use it (`cli/connect.py`); `client/launcher.py` cleans the folder before it
starts one. It finds sockets of any name (`*.sock`), and removes only files with names that begin as
`ClientSettings.engine_id` makes them.
"""

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

# Seconds to wait for an engine. One on this machine answers within milliseconds; a stopped one must not delay a list.
ANSWER_SECONDS = 2.0
# Logs are kept for this many seconds, so that the failure of last week's job can still be read.
LOG_SECONDS = 7 * 86400.0
# The names that `ClientSettings.engine_id` makes.
_LOG_NAME = re.compile(r"[0-9a-f]{12}\.log")
_SOCKET_NAME = re.compile(r"[0-9a-f]{12}\.sock(?:\.(\d+))?")
_LOCK_NAME = re.compile(r"[0-9a-f]{12}\.spawn\.lock")


def find_engines(folder: Path) -> list[Path]:
    """Returns the paths of the sockets (`*.sock`) in a folder on which a process listens, sorted by name."""
    return [path for path in sorted(folder.glob("*.sock")) if accepts_connections(path)]


def accepts_connections(path: Path) -> bool:
    """Whether a process listens at this path. The file alone does not tell: that of a killed engine stays.

    A socket of another user counts as listening, and so does one whose queue of connections is full: its process is
    busy, or stopped.
    """
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(ANSWER_SECONDS)
            probe.connect(str(path))
    except (PermissionError, BlockingIOError, TimeoutError):
        # The socket belongs to another user, or its queue is full, which Linux says at once (EAGAIN).
        return True
    except OSError:
        return False
    return True


def describe_engine(path: Path, token: str = "") -> str:
    """Returns a text for a list of engines: the socket's path, and cache folder and pid if the engine answers.

    It connects for that, and waits at most `ANSWER_SECONDS` for each step.

    Args:
        path: path of the engine's socket.
        token: token that the engine may ask for; "" if there is none.
    """
    try:
        with contextlib.closing(Connection(path, "", token, ANSWER_SECONDS)) as connection:
            return f"{path} (cache {connection.welcome.root}, pid {connection.welcome.pid})"
    except (DisconnectedError, StreamerError):
        return str(path)


def remove_leftovers(folder: Path) -> None:
    """Removes the sockets and unheld locks that ended processes of this user have left, and old logs of any user.

    Files that cannot be removed stay. Raises OSError if the folder cannot be read.
    """
    remove_old_logs(folder)
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if path.lstat().st_uid != os.geteuid():
                continue
            if found := _SOCKET_NAME.fullmatch(path.name):
                # An engine binds its socket before it listens, under a name that ends in its pid.
                if not accepts_connections(path) and not (found[1] and os.path.exists(f"/proc/{found[1]}")):
                    path.unlink()
            elif _LOCK_NAME.fullmatch(path.name):
                # The lock is removed if no process holds it. A process that waits for it finds the file gone, and makes
                # another.
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                        path.unlink()
                finally:
                    os.close(descriptor)


def remove_old_logs(folder: Path) -> None:
    """Removes logs of engines to which nothing was written for `LOG_SECONDS`, unless the engine still listens.

    Logs that cannot be removed stay. Raises OSError if the folder cannot be read.
    """
    oldest = time.time() - LOG_SECONDS
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if (
                _LOG_NAME.fullmatch(path.name)
                and path.stat().st_mtime < oldest
                and not accepts_connections(path.with_suffix(".sock"))
            ):
                path.unlink()
