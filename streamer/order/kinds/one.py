"""Makes the orders and codes of one dataset; `order/kinds/__init__.py` finds it by the kind of the spec."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

import numpy as np

from streamer.order.epoch import EpochOrder
from streamer.order.hashing import Integers
from streamer.order.kinds.kind import CodeBook, Counted, Orders, RankView, Selected, Uses
from streamer.order.spec import OrderSpec


class OneOrders(Orders):
    """The orders of one dataset, each a permutation of its samples."""

    def __init__(self, spec: OrderSpec) -> None:
        self._spec = spec

    def order(self, members: Sequence[Counted], epoch: int, view: RankView) -> EpochOrder:
        """See `Orders.order`; the only member is the dataset, and `view` is not looked at."""
        (only,) = members
        words = only.order_words if self._spec.cut == "by_key" else None
        return EpochOrder(self._spec, only.order_samples, epoch, chunk_words=words)

    def codes(self, members: Sequence[Selected]) -> Ordinals:
        """See `Orders.codes`."""
        (only,) = members
        return Ordinals(only)


class Ordinals(CodeBook):
    """The codes of one dataset: a code is the sample's ordinal in the manifest, whatever the selection is."""

    def __init__(self, data: Selected) -> None:
        self._data = data

    def carry(self, samples: Integers) -> Integers:
        """See `CodeBook`."""
        return self._data.to_manifest(samples)

    def encode(self, members: Integers, turns: Integers, numbers: Integers) -> Integers:
        """See `CodeBook`."""
        return self._data.to_manifest(numbers)

    def members(self, codes: Integers) -> Integers:
        """See `CodeBook`."""
        return np.zeros_like(codes)

    def first_of_each(self, codes: Integers) -> dict[int, int]:
        """See `CodeBook`."""
        return {0: 0}

    def locate(self, code: int) -> tuple[int, int]:
        """See `CodeBook`."""
        return 0, self._data.number(code)

    def uses(self, epoch: int, codes: Integers) -> Sequence[Uses]:
        """See `CodeBook`; the run is the epoch."""
        return (Uses(0, np.arange(len(codes)), codes, repeat(epoch)),)

    def parts(self, rows: Integers, counts: Sequence[int]) -> tuple[Integers, Integers, Integers]:
        """See `CodeBook`."""
        return np.zeros_like(rows), rows, np.zeros_like(rows)

    def content(self, epoch: int, member: int, turn: int) -> int:
        """See `CodeBook`."""
        return epoch
