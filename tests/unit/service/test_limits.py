"""What clients may take follows from what the service has."""

import resource

from streamer.config import MiB, ServiceConfig
from streamer.service.admission import MAX_READ_BYTES, MIN_CLIENTS, RESERVED_DESCRIPTORS, ServiceLimits


def test_bytes_follow_the_memory():
    """A container of 512 MiB has a budget of 128: half of it for schedules, a quarter for questions."""
    limits = ServiceLimits.make(ServiceConfig(), memory_bytes=128 * MiB)
    assert (limits.schedule_bytes, limits.request_bytes) == (64 * MiB, 32 * MiB)
    assert limits.answer_bytes == MAX_READ_BYTES


def test_peers_leave_descriptors_for_the_store(monkeypatch):
    """Never more than there are files to open, and never none."""
    for soft, peers in [(2048, 2048 - RESERVED_DESCRIPTORS), (100, MIN_CLIENTS), (10**6, 4096)]:
        monkeypatch.setattr(resource, "getrlimit", lambda which, soft=soft: (soft, soft))
        assert ServiceLimits.make(ServiceConfig(), memory_bytes=MiB).clients == peers
