"""The error for a cache that is too small names a limit that is enough."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from streamer.config import enough_bytes, parse_bytes
from streamer.engine.engine import make_too_small_error

NODE = partial(
    make_too_small_error,
    root=Path("/c"),
    limit_bytes=0,
    whole_bytes=300_000,
    overhead_bytes=589_824,
    wanted_bytes=2_621_440,
    others_bytes=0,
    to_come=0,
)


def test_a_limit_below_manifests_and_catalog_is_named_whole() -> None:
    """The error names the configured limit, not the 0 B that chunks may take of it, and advises one that holds all."""
    error = NODE()
    needed = NODE.keywords["wanted_bytes"] + NODE.keywords["overhead_bytes"]
    assert "the limit of 300.0 kB is too small" in str(error)
    assert "Set cache_bytes to at least 3.3 MB" in str(error)
    assert "0 B" not in str(error).replace("300.0 kB", "")
    assert parse_bytes("3.3 MB", "x") >= needed == error.details["least_bytes"]


def test_ranks_that_have_not_come_yet_are_counted() -> None:
    """The advised limit counts ranks that have not come yet: the first of eight names what all eight need."""
    error = NODE(to_come=6, others_bytes=2_621_440)
    assert error.details["least_bytes"] == 8 * 2_621_440 + 589_824
    assert "21.0 MB for all readers of this machine" in str(error)
    assert "at least 21.6 MB" in str(error)


@pytest.mark.parametrize("count", [1, 999, 1000, 1001, 2_621_440, 3_211_264, 10**9 + 1, 5 * 10**12 + 7])
def test_rounded_up(count: int) -> None:
    """The advised limit, read back from its text, is no smaller than needed and at most a tenth larger."""
    assert count <= parse_bytes(enough_bytes(count), "x") <= count * 1.1 + 1
