"""The order of growing datasets: a change of a number here is another order, and needs another ORDER_FORMAT.

Runs that were interrupted before the change could not be resumed after it.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from streamer.order.growing import AdmissionLog, Cohorts, GrowingOrder
from streamer.order.spec import ORDER_FORMAT, OrderSpec

# Sizes that no number of lanes divides.
SIZES = np.array([(c * c * 7 + c * 31) % 97 for c in range(300)])
ADMITTED = [9, 4, 0, 7, 3, 6, 2, 0, 5, 8]


@pytest.mark.parametrize(
    ("lanes", "window", "digest"),
    [
        (1, 4, "29a520f86a4e3b8c5ff307a70c1f97ce"),
        (8, 32, "d56537f2813637aafafcc48fbf7324f2"),
    ],
)
def test_the_order_is_this_one(lanes: int, window: int, digest: str) -> None:
    """The sample codes of ten rounds of a growing dataset have the digest that was fixed for ORDER_FORMAT 1."""
    log = AdmissionLog(Cohorts(OrderSpec("0" * 32, 17, "block", lanes, window), SIZES), 3, 2, ADMITTED)
    codes = GrowingOrder(log, np.arange(lanes), log.stop, 0).ordinals(np.arange(log.stop))
    assert ORDER_FORMAT == 1
    assert hashlib.blake2b(codes.astype("<i8").tobytes(), digest_size=16).hexdigest() == digest
