"""Decides which clients may connect: by the user that the kernel reports, and by a token if one is set."""

from __future__ import annotations

import hmac
import os
import socket
import struct
from collections.abc import Iterable

import msgspec

from streamer.base import linux
from streamer.cache.folder import group_id
from streamer.config import CacheConfig, ServiceConfig, read_token
from streamer.errors import EngineUnavailableError

# From <asm-generic/socket.h>; Linux 4.13. Python's socket module does not have it.
SO_PEERGROUPS = 59
# NGROUPS_MAX of Linux; a longer answer is an error of getsockopt.
_MOST_GROUPS = 65536
_GROUPS_AT_FIRST = 64


class Credentials(msgspec.Struct, frozen=True):
    """The other end of a connection as the kernel saw it at connect. A pid of 0 means another PID namespace."""

    pid: int
    uid: int
    groups: frozenset[int]

    def __str__(self) -> str:
        return f"pid {self.pid} uid {self.uid}"

    @classmethod
    def of(cls, connection: socket.socket) -> Credentials | None:
        """Credentials of a connected unix socket; None on systems other than Linux."""
        if (found := linux.peer_credentials(connection)) is None:
            return None
        pid, uid, gid = found
        return cls(pid, uid, frozenset([gid, *_supplementary(connection)]))


def _supplementary(connection: socket.socket) -> Iterable[int]:
    for count in (_GROUPS_AT_FIRST, _MOST_GROUPS):
        try:
            raw = connection.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, 4 * count)
        except OSError:  # more groups than asked for, or an older kernel: then only the first group counts
            continue
        return struct.unpack(f"={len(raw) // 4}I", raw)
    return ()


class Admission:
    """Admits the service's own user, root, listed users and the cache's group; checks the token, if one is set.

    Args:
        service: listed users and token file. The file is read here: once, at the start and at each reload.

    Raises:
        ConfigError: the group does not exist, or the token file cannot be read.
    """

    def __init__(self, cache: CacheConfig, service: ServiceConfig) -> None:
        self._users = frozenset([os.geteuid(), 0, *service.allow_uids])
        self._group = None if cache.group is None else group_id(cache.group)
        self._token = None if service.token_file is None else read_token(service.token_file)

    def __repr__(self) -> str:
        asks = "a token" if self._token is not None else "no token"
        return f"Admission(users={sorted(self._users)}, group={self._group}, {asks})"

    def knows(self, user: Credentials | None) -> bool:
        """Whether the user may connect, perhaps with a token."""
        return user is None or user.uid in self._users or self._group in user.groups

    def check(self, user: Credentials | None, token: str) -> None:
        """Admits a client.

        Args:
            user: its credentials; None if the platform does not report them.
            token: the token that it showed.

        Raises:
            EngineUnavailableError: it is not admitted; the text says why.
        """
        if user is not None and not self.knows(user):
            raise EngineUnavailableError(
                f"user {user.uid} may not use this engine; it serves users {sorted(self._users)} and group "
                f"{self._group}: add it to allow_uids of the service, or run the trainer with that group",
                uid=user.uid,
            )
        if self._token is not None and not hmac.compare_digest(self._token.encode(), token.encode()):
            shown = "the token shown is another one" if token else "none was shown"
            raise EngineUnavailableError(
                f"this engine asks for a token and {shown}; set STREAMER_TOKEN_FILE to the file that holds it"
            )
