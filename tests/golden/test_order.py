"""The order itself: a change of any number here is another order, and needs another ORDER_FORMAT.

Runs that were interrupted before the change could not be resumed after it. Never edit a digest
without raising the format.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import pytest

from streamer.base.splitmix import fold, fold_each
from streamer.order import EpochOrder, OrderSpec, RankPlan, State
from streamer.order.spec import ORDER_FORMAT
from streamer.order.state import STATE_FORMAT

MANIFEST = "00112233445566778899aabbccddeeff"


@dataclass(frozen=True)
class Golden:
    """An order and what it gave when the format was fixed."""

    name: str
    sizes: np.ndarray
    spec: OrderSpec
    epoch: int
    order_id: str
    first: list[int]
    digest: str


def _uneven() -> np.ndarray:
    """300 chunks of 0..96 samples, written out as a rule and not drawn by a library."""
    return np.array([(c * c * 7 + c * 31) % 97 for c in range(300)], dtype=np.int64)


GOLDEN = [
    Golden(
        "block",
        _uneven(),
        OrderSpec(MANIFEST, 17, "block", 8, 64),
        0,
        "41656f1d55eb43551ddad93f8c69d7c9",
        [6055, 2101, 11748, 10472, 12058, 193, 10949, 9730],
        "a5eb1b225ca930ee82d5525aaf4616de",
    ),
    Golden(
        "later epoch",
        _uneven(),
        OrderSpec(MANIFEST, 17, "block", 8, 64),
        89,
        "41656f1d55eb43551ddad93f8c69d7c9",
        [1788, 9198, 13128, 5688, 2346, 10310, 2617, 11968],
        "c8d979b9e34cf2c3a473b42b803fd0ae",
    ),
    Golden(
        "another seed",
        _uneven(),
        OrderSpec(MANIFEST, (1 << 64) - 1, "block", 8, 64),
        0,
        "5458bffaf3c12b0fd08c749235f29ae9",
        [6042, 797, 8131, 13160, 2908, 7290, 7292, 10194],
        "8341218cd8e8c76f50e325cf02102bad",
    ),
    Golden(
        "redrawn",
        _uneven(),
        OrderSpec(MANIFEST, 17, "block", 8, 64, "redrawn"),
        1,
        "00fb0eae35a0cf2a996724098ba3c036",
        [9024, 6867, 10734, 13203, 213, 5166, 1224, 10986],
        "21309a5d98b436c96c6190566fdaa1ae",
    ),
    Golden(
        "common",
        _uneven(),
        OrderSpec(MANIFEST, 17, "block", 8, 64, "by_key"),
        1,
        "30a3d5a7138a71d71241d4de6398bac4",
        [195, 6867, 10734, 4848, 10967, 13203, 371, 9980],
        "576c57c18331c0a8f0aefe57498bd0b1",
    ),
    Golden(
        "window wider than chunks",
        _uneven(),
        OrderSpec(MANIFEST, 17, "block", 3, 600),
        0,
        "6fdab9c4195316497cb15392b46fd9f0",
        [11736, 10509, 9657, 11822, 10542, 9664, 11765, 10480],
        "ce1d0da6556177a4c6d0011b6efe8600",
    ),
    Golden(
        "sample",
        np.ones(1000, np.int64),
        OrderSpec(MANIFEST, 17, "sample", 8, 64),
        0,
        "d36188b55234e5c4111444c2ba5ae159",
        [915, 412, 269, 243, 730, 784, 828, 993],
        "b3182abd3698a81708a35dfa750c8d4e",
    ),
    Golden(
        "none",
        _uneven(),
        OrderSpec(MANIFEST, 17, "none", 1, 1),
        0,
        "0e54f238471877f46b351bb7b080505c",
        [0, 1, 2, 3, 4, 5, 6, 7],
        "18b2c6ad0d9f72de0db386cec3dfd0ff",
    ),
]


def _digest(values: np.ndarray) -> str:
    return hashlib.sha256(values.astype("<i8").tobytes()).hexdigest()[:32]


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda g: g.name)
def test_the_order_is_the_one_that_was_fixed(golden: Golden) -> None:
    """The order of a dataset has the id, the first samples and the digest of an epoch that were fixed for it."""
    words = fold_each(fold(99), np.arange(len(golden.sizes)))
    order = EpochOrder(golden.spec, golden.sizes, golden.epoch, chunk_words=words)
    ordinals = order.ordinals(np.arange(golden.sizes.sum()))
    found = (golden.spec.order_id, ordinals[:8].tolist(), _digest(ordinals))
    assert found == (golden.order_id, golden.first, golden.digest)


def test_a_thousand_million_samples_are_ordered_as_fixed() -> None:
    """An epoch of 1e9 samples in 1e5 chunks has the fixed samples at its first, middle and last position."""
    sizes = np.full(100_000, 10_000, dtype=np.int64)
    order = EpochOrder(OrderSpec.auto(MANIFEST, sizes, 1024, 17), sizes, 3)
    assert order.ordinals(np.array([0, 500_000_000, 999_999_999])).tolist() == [327023170, 791810073, 231422103]


def test_rank_splits_and_automatic_geometry_are_as_fixed() -> None:
    """The automatic lanes and window, and the positions and samples of rank 1 of 3 in batch 2, are the fixed ones."""
    spec = OrderSpec.auto(MANIFEST, _uneven(), 48, 17)
    batch = RankPlan(EpochOrder(spec, _uneven(), 0), 48, 3, 1).batch(2)
    assert (spec.lanes, spec.window, batch.positions.tolist(), _digest(batch.ordinals)) == (
        8,
        18,
        [130, 138, 99, 107, 115, 123, 131, 139, 100, 108, 116, 124, 132, 140, 101, 109],
        "57af4c694836e547aefbb066d1c9e963",
    )


def test_the_state_is_as_fixed() -> None:
    """The state of a dataset is saved in checkpoints as this dictionary, and is restored from it."""
    assert (ORDER_FORMAT, STATE_FORMAT) == (1, 1)
    saved: dict[str, object] = {
        "format": 1,
        "order_id": "41656f1d55eb43551ddad93f8c69d7c9",
        "manifest": "00112233445566778899aabbccddeeff",
        "seed": 17,
        "shuffle": "block",
        "lanes": 8,
        "window": 64,
        "cut": "fixed",
        "epoch": 4,
        "position": 1920,
        "global_batch": 64,
    }
    assert State.from_dict(saved) == State(GOLDEN[0].spec, 4, 1920, 64)
    assert State.from_dict(saved).to_dict() == saved
