"""Limits for the clients of a service, derived once from its own memory and descriptor limits."""

from __future__ import annotations

import contextlib
import logging
import resource

import msgspec

from streamer.config import MiB, ServiceConfig
from streamer.fetch.memory_budget import budget_bytes

logger = logging.getLogger(__name__)

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
