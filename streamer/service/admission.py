"""Decides which clients may connect to an engine, and limits the memory and descriptors that they take together.

`server.py` asks it for every connection, `long_requests.py` for every request that reads data. `lifecycle.py` makes an
`Admission` of each new configuration. The user that the kernel reports decides, and a token if one is set. The limits
follow from the service's own memory and descriptors.
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

# This option of a socket is in <asm-generic/socket.h> since Linux 4.13; Python's socket module does not have it.
SO_PEERGROUPS = 59
# NGROUPS_MAX of Linux; a longer answer is an error of getsockopt.
_MAX_GROUPS = 65536
_GROUPS_AT_FIRST = 64

# Length of one read that a client asks for, at most.
MAX_READ_BYTES = 64 * MiB
# Unanswered long requests of one client, at most.
MAX_LONG_REQUESTS = 64
# Urls of one request, at most: as many as the root of a manifest has room for.
MAX_REQUEST_URLS = 100_000
# Sessions of one connection, at most.
MAX_SESSIONS_PER_PEER = 256
# Descriptors that clients may not take: for the store's connections (at most 256 an endpoint), the catalog, chunk files
# and manifests.
RESERVED_DESCRIPTORS = 512
MIN_CLIENTS = 16
# Room for eight of the longest frames.
MIN_FRAME_BYTES = 64 * MiB


class Credentials(msgspec.Struct, frozen=True):
    """Process and user at the other end of a connection, as the kernel saw them when it was made.

    Attributes:
        pid: number of the process; 0 if it is in another PID namespace.
        uid: number of the user.
        groups: numbers of all groups of the process.
    """

    pid: int
    uid: int
    groups: frozenset[int]

    def __str__(self) -> str:
        return f"pid {self.pid} uid {self.uid}"

    @classmethod
    def read(cls, connection: socket.socket) -> Credentials | None:
        """Returns the credentials of a connected unix socket; None on systems other than Linux, which do not tell."""
        if (found := linux.peer_credentials(connection)) is None:
            return None
        pid, uid, gid = found
        return cls(pid, uid, frozenset([gid, *_read_groups(connection)]))


def _read_groups(connection: socket.socket) -> Iterable[int]:
    """Returns the further groups of the process at the other end; none if the kernel does not tell them."""
    for count in (_GROUPS_AT_FIRST, _MAX_GROUPS):
        try:
            raw = connection.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, 4 * count)
        except OSError:  # there are more groups than asked for, or the kernel is too old to tell
            continue
        return struct.unpack(f"={len(raw) // 4}I", raw)
    return ()


class Admission:
    """Admits the service's own user, root, listed users and the cache's group; checks the token, if one is set.

    Args:
        cache: names the group.
        service: names the users and the token file, which is read here.

    Raises:
        ConfigError: the group does not exist, or the token file cannot be read or is empty.
    """

    def __init__(self, cache: CacheConfig, service: ServiceConfig) -> None:
        self._users = frozenset([os.geteuid(), 0, *service.allow_uids])
        self._group = None if cache.group is None else group_id(cache.group)
        self._token = None if service.token_file is None else read_token(service.token_file)

    def __repr__(self) -> str:
        asks = "a token" if self._token is not None else "no token"
        return f"Admission(users={sorted(self._users)}, group={self._group}, {asks})"

    def knows(self, user: Credentials | None) -> bool:
        """Whether the user may connect, with the token if one is set; True where the platform does not tell users."""
        return user is None or user.uid in self._users or self._group in user.groups

    def check(self, user: Credentials | None, token: str) -> None:
        """Checks the user and the token of a client that has said hello.

        Args:
            user: credentials of the client, or None if the platform does not tell them.
            token: the token that it showed; "" for none.

        Raises:
            EngineUnavailableError: it is not admitted, and the message says why.
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
    """Makes a service without [[datasets]] read for one user only: the first one that asks it for data.

    Clients of such a service choose urls, and share one cache and one identity at the stores. So they must trust each
    other as the processes of one user do. Until that user is known, all that may connect get statistics. From then on
    requests for data of other users are refused, and their new connections, except those of root and the service's own
    user.

    Args:
        applies: whether the service has no [[datasets]]. Otherwise nothing is refused here.
    """

    def __init__(self, *, applies: bool) -> None:
        self._applies = applies
        self._uid: int | None = None

    def __repr__(self) -> str:
        return f"SoleUser({self._uid if self._applies else 'any'})"

    def check_connection(self, user: Credentials | None) -> None:
        """Checks the user of a new connection.

        Raises:
            EngineUnavailableError: another user is served, and this one is neither root nor the service's own. The
                message says what to configure.
        """
        if self._is_other(user) and user is not None and user.uid not in (0, os.geteuid()):
            raise EngineUnavailableError(self._refusal(user), uid=user.uid)

    def check_request(self, user: Credentials | None) -> None:
        """Checks the user of a request for data. The first one that asks is served from then on.

        Raises:
            AccessDeniedError: another user is served.
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
    """Upper limits of one service, for all its clients together.

    Attributes:
        clients: number of connections.
        answer_bytes: contents that were read for clients and that these have not received yet.
        request_bytes: urls in requests that are being answered, with all that their braces stand for.
        schedule_bytes: schedules of open sessions.
        frame_bytes: frames of which only a part has arrived.
        strangers: number of connections of users who may not connect, before their hello has been refused.
    """

    clients: int
    answer_bytes: int
    request_bytes: int
    schedule_bytes: int
    frame_bytes: int = MIN_FRAME_BYTES
    strangers: int = 16

    @classmethod
    def make(cls, config: ServiceConfig, memory_bytes: int | None = None) -> ServiceLimits:
        """Derives the limits from memory and from this process's limit of open files.

        Args:
            config: may lower the number of connections.
            memory_bytes: memory of which the limits are shares; None means that of `fetch.memory_budget.budget_bytes`.
        """
        budget = memory_bytes or budget_bytes()
        clients = config.max_connections
        if (descriptors := resource.getrlimit(resource.RLIMIT_NOFILE)[0]) != resource.RLIM_INFINITY:
            clients = max(MIN_CLIENTS, min(clients, descriptors - RESERVED_DESCRIPTORS))
        return cls(
            clients=clients,
            answer_bytes=max(MAX_READ_BYTES, budget // 2),
            request_bytes=budget // 4,
            schedule_bytes=budget // 2,
            frame_bytes=max(MIN_FRAME_BYTES, budget // 4),
        )


def raise_limits() -> None:
    """Raises this process's soft limits, of descriptors and of the length of files, to its hard limits.

    The customary soft limit of 1024 descriptors is meant for select(2). A refusal of the kernel is ignored.
    """
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE):
        soft, hard = resource.getrlimit(limit)
        if soft != hard:
            with contextlib.suppress(ValueError, OSError):  # a kernel that refuses keeps the old limit
                resource.setrlimit(limit, (hard, hard))
