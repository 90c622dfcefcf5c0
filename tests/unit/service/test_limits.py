"""The limits of clients follow from the memory and descriptors of the service."""

import resource

import pytest

from streamer.config import MiB, ServiceConfig
from streamer.service.admission import MAX_READ_BYTES, MIN_CLIENTS, RESERVED_DESCRIPTORS, ServiceLimits


def test_bytes_follow_the_memory():
    """Clients may take half of the memory budget for schedules and a quarter for requests.

    A container of 512 MiB has a budget of 128 MiB.
    """
    limits = ServiceLimits.make(ServiceConfig(), memory_bytes=128 * MiB)
    assert (limits.schedule_bytes, limits.request_bytes) == (64 * MiB, 32 * MiB)
    assert limits.answer_bytes == MAX_READ_BYTES


@pytest.mark.parametrize(
    ("soft", "clients"),
    [(2048, 2048 - RESERVED_DESCRIPTORS), (100, MIN_CLIENTS), (10**6, 4096), (resource.RLIM_INFINITY, 4096)],
    ids=["some", "few", "very many", "unlimited"],
)
def test_peers_leave_descriptors_for_the_store(monkeypatch, soft, clients):
    """The number of clients leaves descriptors for the store, and is bounded from below and above."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, soft))
    assert ServiceLimits.make(ServiceConfig(), memory_bytes=MiB).clients == clients
