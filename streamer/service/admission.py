"""Decides which clients may connect, and what all of them may take.

Who connects is decided by the user that the kernel reports, and by a token if one is set; the limits are derived once
from the service's own memory and descriptor limits.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import resource
import socket
import struct
from collections.abc import Iterable

import msgspec

from streamer.base import linux
from streamer.cache.folder import group_id
from streamer.config import CacheConfig, MiB, ServiceConfig, read_token
from streamer.errors import AccessDeniedError, EngineUnavailableError
from streamer.fetch.memory_budget import budget_bytes

# The number is in <asm-generic/socket.h>; Linux 4.13. Python's socket module does not have it.
SO_PEERGROUPS = 59
# NGROUPS_MAX of Linux; a longer answer is an error of getsockopt.
_MAX_GROUPS = 65536
_GROUPS_AT_FIRST = 64

MAX_READ_BYTES = 64 * MiB
# Unanswered long requests of one client.
MAX_LONG_REQUESTS = 64
# Urls of one request: what the root of a manifest has room for.
MAX_REQUEST_URLS = 100_000
MAX_SESSIONS_PER_PEER = 256
# The store's connections (at most 256 an endpoint), the catalog, chunk files and manifests.
RESERVED_DESCRIPTORS = 512
MIN_CLIENTS = 16
# Eight of the longest frames.
MIN_FRAME_BYTES = 64 * MiB


class Credentials(msgspec.Struct, frozen=True):
    """The other end of a connection as the kernel saw it at connect. A pid of 0 means another PID namespace."""

    pid: int
    uid: int
    groups: frozenset[int]

    def __str__(self) -> str:
        return f"pid {self.pid} uid {self.uid}"

    @classmethod
    def read(cls, connection: socket.socket) -> Credentials | None:
        """Returns the credentials of a connected unix socket; None on systems other than Linux."""
        if (found := linux.peer_credentials(connection)) is None:
            return None
        pid, uid, gid = found
        return cls(pid, uid, frozenset([gid, *_read_groups(connection)]))


def _read_groups(connection: socket.socket) -> Iterable[int]:
    for count in (_GROUPS_AT_FIRST, _MAX_GROUPS):
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
            user: credentials of the client, or None if the platform does not report them.
            token: the token that it showed.

        Raises:
            EngineUnavailableError: it is not admitted, and the text says why.
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


class SoleUser:
    """The one user for whom a service without [[datasets]] reads: the first one that asks it for data.

    Its clients choose urls and share one cache and one identity, so they must trust each other as one user does.
    Statistics are for all that may connect until then, and later for the service's own user and root as well.

    Args:
        applies: whether the service has no [[datasets]].
    """

    def __init__(self, *, applies: bool) -> None:
        self._applies = applies
        self._uid: int | None = None

    def __repr__(self) -> str:
        return f"SoleUser({self._uid if self._applies else 'any'})"

    def check_connection(self, user: Credentials | None) -> None:
        """Refuses a second user at once.

        Raises:
            EngineUnavailableError: another user is served; the text says what to configure.
        """
        if self._is_other(user) and user is not None and user.uid not in (0, os.geteuid()):
            raise EngineUnavailableError(self._refusal(user), uid=user.uid)

    def check_request(self, user: Credentials | None) -> None:
        """Takes the first user that asks for data as the one who is served.

        Raises:
            AccessDeniedError: it is another one.
        """
        if user is not None and self._is_other(user):
            raise AccessDeniedError(self._refusal(user), uid=user.uid)
        if self._applies and user is not None:
            self._uid = user.uid

    def _is_other(self, user: Credentials | None) -> bool:
        return user is not None and self._uid not in (None, user.uid)

    def _refusal(self, user: Credentials) -> str:
        return (
            f"this service has no [[datasets]], so it serves one user, and that is user {self._uid} since it started; "
            f"user {user.uid} needs a service of its own, or this one a [[datasets]] entry for each url that its users "
            'may read in its configuration: [[datasets]] url = "s3://bucket/prefix/"'
        )


class ServiceLimits(msgspec.Struct, frozen=True):
    """Limits of one service, for all clients together.

    Attributes:
        answer_bytes: contents that were read for clients and that these have not received yet.
        request_bytes: urls in requests that are being answered, with all that their braces stand for.
        schedule_bytes: schedules of open sessions, 20 bytes per entry.
        frame_bytes: frames whose end has not arrived.
        strangers: connections of users who may not connect, until they have said hello and are told so.
    """

    clients: int
    answer_bytes: int
    request_bytes: int
    schedule_bytes: int
    frame_bytes: int = MIN_FRAME_BYTES
    strangers: int = 16

    @classmethod
    def make(cls, config: ServiceConfig, memory_bytes: int | None = None) -> ServiceLimits:
        """Derives them from the cgroup's memory (a quarter, see `fetch.memory_budget`) and the open-files limit."""
        budget = memory_bytes or budget_bytes()
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return cls(
            clients=max(MIN_CLIENTS, min(config.max_connections, descriptors - RESERVED_DESCRIPTORS)),
            answer_bytes=max(MAX_READ_BYTES, budget // 2),
            request_bytes=budget // 4,
            schedule_bytes=budget // 2,
            frame_bytes=max(MIN_FRAME_BYTES, budget // 4),
        )


def raise_limits() -> None:
    """Raises the limits of descriptors and of the length of files to the system's.

    The customary soft limit of 1024 descriptors is meant for select(2).
    """
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE):
        soft, hard = resource.getrlimit(limit)
        if soft != hard:
            with contextlib.suppress(ValueError, OSError):  # a kernel that refuses keeps the old limit
                resource.setrlimit(limit, (hard, hard))
