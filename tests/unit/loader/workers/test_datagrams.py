"""Waiting for descriptors between the processes of one rank."""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Iterator

import pytest

from streamer.loader.workers.datagrams import readable


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """The limit that a mix of many members has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
def test_a_descriptor_may_have_any_number() -> None:
    """Also above 1023, which select(2) refuses; without bytes it is not readable."""
    reader, writer = os.pipe()
    high = fcntl.fcntl(reader, fcntl.F_DUPFD_CLOEXEC, 1500)
    try:
        assert not readable(high, 0.0)
        assert not readable(high, 0.01)
        os.write(writer, b"x")
        assert readable(high, 20.0)
    finally:
        for descriptor in (reader, writer, high):
            os.close(descriptor)
