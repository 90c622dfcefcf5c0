"""When a peer is late."""

from __future__ import annotations

import pytest

from streamer.fetch.hedge import LEAST_SAMPLES, Sampled
from streamer.peers.watch import late_seconds


@pytest.mark.parametrize(
    ("usual", "due", "late"),
    [
        (None, 0.0, 0.25),
        (None, 1.2, 0.6),  # look-ahead has time
        (None, 60.0, 1.0),
        (0.005, 0.0, 0.25),
        (0.4, 0.0, 0.6),  # a busy peer, on which each answer takes as long
        (0.4, 1.6, 0.8),
        (5.0, 0.0, 1.0),  # a reader is never held up for longer
    ],
)
def test_a_peer_is_late_after_more_than_it_usually_takes(usual: float | None, due: float, late: float) -> None:
    """Before, 0.25 s counted as late also where all answers of a busy peer take that long."""
    first_byte = Sampled()
    for _ in range(0 if usual is None else LEAST_SAMPLES):
        first_byte.add(usual)
    assert late_seconds(first_byte, due) == pytest.approx(late)
