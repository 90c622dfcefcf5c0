"""Tests of the codes of samples: what they stand for in a dataset alone, in a mix, in a growing dataset."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from streamer.batches.rows.order_rows import SampleRows
from streamer.batches.samples.opened import Members
from streamer.batches.samples.plans import StreamCodes
from streamer.order.growing import GrowingSpec
from streamer.order.kinds.kind import Uses
from streamer.order.mix import MixSpec
from streamer.order.spec import OrderSpec
from tests.mixes import request, sources

SPEC = OrderSpec("a" * 32, 17, "block", 1, 1)


def selected(ordinals: list[int]) -> SimpleNamespace:
    """Stands for a dataset of which some samples are selected, by their ordinals in the manifest; it has no data."""
    return SimpleNamespace(
        samples=len(ordinals),
        rows=SampleRows(),
        to_manifest=lambda numbers: np.array(ordinals)[numbers],
        number=ordinals.index,
    )


def codes_of(spec: OrderSpec | MixSpec | GrowingSpec, *members: SimpleNamespace) -> StreamCodes:
    return StreamCodes(spec, Members(members))


def plain(uses: Uses) -> tuple[int, list[int], list[int], list[int]]:
    return uses.member, uses.rows.tolist(), uses.ordinals.tolist(), list(uses.runs)


def test_a_dataset_alone_has_the_ordinals_of_its_manifest() -> None:
    """The code of a sample of a dataset alone is its ordinal in the manifest.

    Its random numbers therefore do not depend on a selection.
    """
    codes = codes_of(SPEC, selected([3, 5, 9]))
    assert codes.encode(np.array([0, 2])).tolist() == [3, 9]
    assert codes.locate(9) == (0, 2)
    assert codes.members(np.array([3, 9])).tolist() == [0, 0]


def test_a_mix_has_member_and_pass() -> None:
    """The code of a sample of a mix has its member and pass; each use of a sample has random numbers of its own.

    The pass counts over all epochs.
    """
    spec = request(["a", "b"], repeat={"a": 1, "b": 2}).spec(sources({"a": 3, "b": 2}), 4)
    codes = codes_of(spec, selected([10, 11, 12]), selected([4, 7]))
    b = 1 << 48
    found = [plain(uses) for uses in codes.uses(3, np.array([2, b + 1, 0, b + 2 + 1]))]
    # Before epoch 3 "a" has made 3 passes, "b" 6.
    assert found == [(0, [0, 2], [12, 10], [3, 3]), (1, [1, 3], [7, 7], [6, 7])]
    assert codes.locate(b + 2 + 1) == (1, 1)


def test_a_growing_dataset_counts_the_uses() -> None:
    """The code of a sample of a growing dataset has its use, counted over all epochs."""
    codes = codes_of(GrowingSpec(SPEC, 2, 8, 1), selected([3, 5, 9]))
    (uses,) = codes.uses(5, np.array([1, 3 * 7 + 1]))
    assert plain(uses) == (0, [0, 1], [5, 5], [0, 7])
    assert codes.locate(3 * 7 + 1) == (0, 1)
