"""The folder of an engine's socket, and who answers there: asked before anything is said.

`/tmp/streamer-UID` has a name that every user knows, in a folder that all may write to. Who makes it first, or turns a
link there, would otherwise be told a job's keys and the engine's token.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import ExitStack
from pathlib import Path

from streamer.base import linux
from streamer.errors import EngineUnavailableError


def open_folder(folder: Path, on_exit: ExitStack, *, external: bool) -> int:
    """Opens the folder of a socket; returns its descriptor, which `on_exit` closes.

    Args:
        folder: path of the folder.
        on_exit: closes it.
        external: whether it was configured, and may be a link, and any user's.

    Raises:
        EngineUnavailableError: it is a link, or belongs to another user.
        OSError: it is not there, or cannot be opened.
    """
    flags = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", 0) | (0 if external else os.O_NOFOLLOW)
    try:
        descriptor = os.open(folder, flags)
    except OSError as error:
        if not external and error.errno in (errno.ELOOP, errno.ENOTDIR) and folder.is_symlink():
            raise EngineUnavailableError(
                f"runtime folder {folder} is a link, which another user may turn; set STREAMER_RUNTIME_DIR to a folder",
                path=str(folder),
            ) from error
        raise
    on_exit.callback(os.close, descriptor)
    owner = os.fstat(descriptor).st_uid
    if not external and owner not in (os.geteuid(), 0):
        raise EngineUnavailableError(
            f"runtime folder {folder} belongs to uid {owner}, not {os.geteuid()}; set STREAMER_RUNTIME_DIR",
            path=str(folder),
            uid=owner,
        )
    return descriptor


def check_server(connection: socket.socket, folder: int, path: Path, *, external: bool) -> None:
    """Checks by the kernel's word who listens at a socket: this user, or root.

    At a configured path (unix:) also the owner of its folder, or of its file unless all users may make files there and
    remove only their own (/tmp).

    Raises:
        EngineUnavailableError: it is another user.
    """
    found = linux.peer_credentials(connection)
    if found is None:
        return
    uid = found[1]
    trusted = {os.geteuid(), 0}
    if external:
        where = os.fstat(folder)
        trusted.add(where.st_uid)
        if not where.st_mode & stat.S_ISVTX:
            trusted.add(os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_uid)
    if uid not in trusted:
        expected = " or ".join(map(str, sorted(trusted)))
        raise EngineUnavailableError(
            f"user {uid} listens at {path}, and not {expected}: nothing was sent; name the socket of your engine in "
            "STREAMER_ENGINE, in a folder that only its user may write to",
            path=str(path),
            uid=uid,
        )
