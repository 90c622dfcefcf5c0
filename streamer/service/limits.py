"""Limits of what clients of a service may take, derived once from its own memory and descriptor limits."""

from __future__ import annotations

import contextlib
import logging
import resource

import msgspec

from streamer.config import MiB, ServiceConfig
from streamer.fetch.memory_budget import budget_bytes

logger = logging.getLogger(__name__)

MAX_READ_BYTES = 64 * MiB
# Unanswered long requests of one peer.
MAX_LONG_REQUESTS = 64
MAX_SESSIONS_PER_PEER = 256
# The store's connections (at most 256 an endpoint), the catalog, chunk files and manifests.
RESERVED_DESCRIPTORS = 512
LEAST_PEERS = 16


class Limits(msgspec.Struct, frozen=True):
    """Of one service, all clients together.

    Attributes:
        peers: connections.
        answer_bytes: contents that were read for clients and not received by them yet.
        request_bytes: urls in requests that are being answered.
        schedule_bytes: schedules of open sessions, 20 bytes an entry.
    """

    peers: int
    answer_bytes: int
    request_bytes: int
    schedule_bytes: int

    @classmethod
    def of(cls, config: ServiceConfig, memory_bytes: int | None = None) -> Limits:
        """From the memory of the cgroup (a quarter of it, as `fetch.memory` counts) and the open-files limit."""
        budget = memory_bytes or budget_bytes()
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return cls(
            peers=max(LEAST_PEERS, min(config.max_connections, descriptors - RESERVED_DESCRIPTORS)),
            answer_bytes=max(MAX_READ_BYTES, budget // 2),
            request_bytes=budget // 4,
            schedule_bytes=budget // 2,
        )


def raise_descriptor_limit() -> None:
    """Takes as many descriptors as the system allows: the customary soft limit of 1024 is for select(2)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):  # a kernel that refuses leaves the old limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
