"""Defines what fixes the order of a growing dataset: the order of its pieces, and the log of its admissions.

`loader/kinds/growing/` makes it, a state keeps it (`order/state.py`), and `order/kinds/growing.py` makes the order of
an epoch by it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd
from typing import ClassVar

import msgspec
import numpy as np

from streamer.order.hashing import Integers
from streamer.order.level import BalanceSpec
from streamer.order.rank_split import RankSplit
from streamer.order.spec import OrderSpec

# Names the fields of the log, which a state keeps besides `kind` and the fields of the order.
LOG = ("reuse", "epoch_samples", "least", "admitted")


class GrowingSpec(msgspec.Struct, frozen=True):
    """The parts of the order of a growing dataset. Any later run can repeat this one from its first batch.

    Attributes:
        order: lanes, window, seed and shuffle, within which samples are admitted.
        reuse: number of rounds that train each admitted cohort.
        epoch_samples: samples of an epoch, over all ranks, in whole global batches of the run.
        least: smallest number of cohorts that a round trains.
        admitted: number of cohorts that each round known so far has added.
    """

    # See `OrderSpec` for these words.
    kind: ClassVar[str] = "growing"
    words: ClassVar[str] = "a StreamingDataset with growing="
    advice: ClassVar[str] = ""
    remedies: ClassVar[dict[str, str]] = {}
    each_once: ClassVar[bool] = False
    counted_only: ClassVar[str] = "a growing dataset"

    order: OrderSpec
    reuse: int
    epoch_samples: int
    least: int
    admitted: tuple[int, ...] = ()

    @property
    def order_id(self) -> str:
        """The digest of the order within which samples are admitted."""
        return self.order.order_id

    @property
    def seed(self) -> int:
        """The seed of the order and of each sample's randomness."""
        return self.order.seed

    @property
    def lanes(self) -> int:
        """The number of lanes, L."""
        return self.order.lanes

    @property
    def balance(self) -> BalanceSpec | msgspec.UnsetType:
        """`UNSET`: no costs decide which samples share a batch, since samples must have arrived to change places."""
        return self.order.balance

    @property
    def orders(self) -> tuple[OrderSpec, ...]:
        """The order of each member: that of the dataset alone."""
        return self.order.orders

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the members of a mix: none."""
        return ()

    def facts(self) -> dict[str, str | int]:
        """Returns the parts of the order, by which ranks and states are compared, in the words of users."""
        return self.order.facts()

    def to_state_parts(self) -> tuple[dict[str, object], dict[str, object]]:
        """Returns two dicts of a state: the parts of the order, which come before epoch and position, and the log.

        The log has the kind of the spec, too, and the number of cohorts that each known round has added.
        """
        log = {name: getattr(self, name) for name in LOG}
        return dict(self.order.parts()), {"kind": self.kind, **log, "admitted": list(self.admitted)}

    def code_ranges(self, epoch: int, own: Callable[[], int]) -> list[tuple[int, int]]:
        """Returns an empty list: which samples an epoch has depends on the rounds. See `OrderSpec.code_ranges`."""
        return []

    def samples_in(self, epoch: int, counts: Sequence[int]) -> int:
        """Returns the samples of an epoch, over all ranks, without padding; see `OrderSpec.samples_in`."""
        return self.epoch_samples

    def rank_lanes(self, split: RankSplit, entry: tuple[int, int]) -> Integers:
        """Returns the numbers of the lanes that a rank draws from in any epoch, or all lanes after some resumes: int64.

        Args:
            split: the rank's place in every batch.
            entry: epoch and position in it at which the run began.
        """
        # A batch begins `step` lanes, or a multiple, after another one of its epoch. After a resume with another batch
        # size, those of later epochs may begin between these lanes, and the repeats of an epoch that is shorter than
        # the number of lanes are of any lane (`real_positions`).
        step = gcd(split.global_batch, self.lanes)
        shifted = step < self.lanes and (self.epoch_samples % step or entry[1] % step)
        if shifted or self.epoch_samples < self.lanes:
            return np.arange(self.lanes, dtype=np.int64)
        return split.rank_lanes(entry[0] * self.epoch_samples + entry[1])
