"""Rows themselves: a change of any number here gives other rows, and needs another ROWS_FORMAT.

Runs that were interrupted before the change could not be resumed after it. Never edit a digest without raising the
format.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from streamer.order import EpochOrder, OrderSpec, State
from streamer.order.balanced_order import BalancedOrder
from streamer.order.level import BalanceSpec
from streamer.order.row_order import RowOrder, row_window
from streamer.order.rows.content import RowContent, row_counts
from streamer.order.rows.sets import chunks_per_set, make_sets
from streamer.order.rows.spec import ROWS_FORMAT, RowSpec
from streamer.order.spec import auto_lanes

MANIFEST = "00112233445566778899aabbccddeeff"
LENGTH = 512
# Costs by a rule, not drawn by a library: 0 to 1,500 tokens, 40 chunks of 50 documents.
COSTS = np.array(
    [(n * n * 7 + n * 131) % 613 + (900 if n % 97 == 5 else 0) - (n % 211 == 3) * 10**6 for n in range(2000)]
)
SAMPLES = np.full(40, 50)


def rows_of(spec: RowSpec, seed: int | None, epoch: int) -> tuple[list[int], str]:
    """The rows of each set, and a digest of what is in them."""
    sets = sets_of(spec, shuffle=seed is not None)
    counts, digest = [], hashlib.blake2b(digest_size=16)
    for number in range(len(sets)):
        documents = documents_of(sets.chunks(number))
        rows = RowContent(spec, seed).rows(COSTS[documents], documents, epoch)
        counts.append(len(rows))
        for column in (documents[rows.items.document], rows.items.begin, rows.items.size, rows.first):
            digest.update(column.astype("<i8").tobytes())
    return counts, digest.hexdigest()


def documents_of(chunks: np.ndarray) -> np.ndarray:
    return np.concatenate([np.arange(50 * chunk, 50 * chunk + 50) for chunk in chunks.tolist()])


def sets_of(spec: RowSpec, *, shuffle: bool):
    return make_sets(SAMPLES, chunks_per_set(SAMPLES, int(COSTS.clip(0).sum()), LENGTH, spec.set_rows), shuffle=shuffle)


def test_the_format_of_the_digests():
    """The digests of rows in this file belong to ROWS_FORMAT 1."""
    assert ROWS_FORMAT == 1


@pytest.mark.parametrize(
    ("spec", "seed", "epoch", "counts", "digest"),
    [
        (
            RowSpec(LENGTH, set_rows=64),
            17,
            0,
            [121, 120, 130, 115, 126, 119, 132, 121, 115, 128],
            "a66869661312b7f5fe35da877ce51875",
        ),
        (
            RowSpec(LENGTH, set_rows=64),
            17,
            1,
            [121, 120, 130, 115, 126, 119, 132, 121, 115, 128],
            "9da73f6a91dd2a5e9a2ddc0f5318309d",
        ),
        (
            RowSpec(LENGTH, set_rows=64),
            None,
            1,
            [121, 126, 127, 113, 129, 127, 112, 128, 128, 115],
            "ac427910d97475e0c3090cda1f107a6a",
        ),
        (
            RowSpec(LENGTH, "concat", "drop", set_rows=64),
            17,
            2,
            [83, 78, 77, 79, 82, 83, 86, 78, 85, 83],
            "355ece9d594b17a009c6512568a4bd36",
        ),
        (
            RowSpec(LENGTH, overflow="truncate", multiple_of=64, set_rows=64),
            17,
            3,
            [124, 122, 132, 120, 128, 124, 135, 123, 122, 131],
            "f8d47cbb1cba9a0758691b885f0158d9",
        ),
    ],
)
def test_rows(spec, seed, epoch, counts, digest):
    """Documents are packed into as many rows, and the same tokens share a row, as was fixed."""
    assert rows_of(spec, seed, epoch) == (counts, digest)


def test_the_order_and_its_state():
    """The order of rows of a shuffled dataset has the fixed digest, and its state is saved as this dictionary."""
    spec = RowSpec(LENGTH, set_rows=64)
    sets = sets_of(spec, shuffle=True)
    counts = row_counts(spec, sets, lambda number: COSTS[documents_of(sets.chunks(number))])
    lanes = auto_lanes(len(counts), 16)
    order_spec = OrderSpec(MANIFEST, 17, "block", lanes, row_window(len(counts), 40, 16, lanes, None), rows=spec)
    order = RowOrder(EpochOrder(order_spec, counts, 1), sets)
    rows = order.ordinals(np.arange(order.samples))
    assert (
        hashlib.blake2b(rows.astype("<i8").tobytes(), digest_size=16).hexdigest() == "148e340b4a8c911768d985ef9ce7236c"
    )
    saved = State(order_spec, 1, 48, 16).to_dict()
    assert saved == {
        "format": 1,
        "order_id": "abadea6aae6a1d50df33f5a82600a899",
        "manifest": "00112233445566778899aabbccddeeff",
        "seed": 17,
        "shuffle": "block",
        "lanes": 1,
        "window": 4,
        "cut": "fixed",
        "packing.length": 512,
        "packing.policy": "best_fit",
        "packing.overflow": "split",
        "packing.multiple_of": 1,
        "packing.set_rows": 64,
        "packing.costs": "",
        "packing.version": 1,
        "epoch": 1,
        "position": 48,
        "global_batch": 16,
    }
    assert State.from_dict(saved) == State(order_spec, 1, 48, 16)


def test_balanced_batches_and_their_state():
    """The order of rows in balanced batches has the fixed digest, and its state adds these fields of the balance."""
    spec = RowSpec(LENGTH, set_rows=64)
    sets = sets_of(spec, shuffle=True)
    counts = row_counts(spec, sets, lambda number: COSTS[documents_of(sets.chunks(number))])
    balance = BalanceSpec(4, 24576, 1, 16)
    order_spec = OrderSpec(MANIFEST, 17, "block", 2, 4, rows=spec, balance=balance)
    inner = RowOrder(EpochOrder(order_spec, counts, 1), sets)
    order = BalancedOrder(inner, balance, lambda rows, epoch: rows * rows % 7919 + epoch)
    rows = order.ordinals(np.arange(order.samples))
    digest = hashlib.blake2b(rows.astype("<i8").tobytes(), digest_size=16).hexdigest()
    assert digest == "f1d25ff69cabaf335459f9f543012b76"
    saved = State(order_spec, 1, 48, 16).to_dict()
    assert {name: value for name, value in saved.items() if name.startswith("balance")} == {
        "balance.rows": 4,
        "balance.linear": 24576,
        "balance.quadratic": 1,
        "balance.batch": 16,
    }
    assert saved["order_id"] == "6236ae49e06f68f39827f02e82cf796c"
    assert State.from_dict(saved) == State(order_spec, 1, 48, 16)
