"""Numbers and names of a session that are out of range."""

from __future__ import annotations

import pytest

from streamer.errors import ProtocolError
from streamer.service.server import _check_numbers
from streamer.wire.messages import OpenSession, Part


@pytest.mark.parametrize("name", ["global_batch", "world_size", "start", "open_bytes", "sharers"])
@pytest.mark.parametrize("number", [-1, 1 << 53, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_numbers_beyond_any_dataset_are_refused(name: str, number: int) -> None:
    """A number of a session that is negative or beyond 2^53 is a ProtocolError.

    Nothing is computed with it before: 2^63 was an error that asked for a report.
    """
    with pytest.raises(ProtocolError, match=f"{name}={number}; it is 0 to 9007199254740991"):
        _check_numbers(OpenSession(1, "job", "digest", "rank 0", **{name: number}))
    _check_numbers(OpenSession(1, "job", "digest", "rank 0", **{name: (1 << 53) - 1}))


def test_parts_and_names_are_checked_too() -> None:
    """The numbers of parts and the length of names are checked as well, because a session keeps them."""
    parts = [Part("a", "x"), Part("b", "y", open_bytes=1 << 63)]
    with pytest.raises(ProtocolError, match="open_bytes of part 1=9223372036854775808"):
        _check_numbers(OpenSession(1, "job", "digest", "rank 0", parts=parts))
    with pytest.raises(ProtocolError, match="names have 100006 letters"):
        _check_numbers(OpenSession(1, "j" * 100_000, "digest", "rank 0"))
