"""The options with which a user says how a dataset grows (`growing=`), and what cannot be combined with them.

`loader/dataset.py` reads them, `loader/kinds/growing/` makes the rounds by them, and other files of `loader/` and
`batches/rows/balance.py` ask them what they refuse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from streamer.config import parse_bytes
from streamer.errors import ConfigError
from streamer.removed import check_options


@check_options
@dataclass(frozen=True)
class Growing:
    """Trains on the samples that have arrived, each several times, while the others are on their way.

    For a link that brings fewer bytes than the trainer reads. The samples are admitted in a random order, pass after
    pass. Each admitted sample is trained on `reuse` times before it leaves. After any number of steps, the uses of two
    samples differ by `reuse + 1` at most.

    Args:
        reuse: number of uses of each admitted sample: 1.25 times the trainer's rate divided by the link's, rounded up.
            The stall report names the number for the measured rates.
        epoch_samples: samples of an epoch, over all ranks, rounded to whole global batches.
        round_bytes: "auto": each round trains on what has arrived on all ranks. Bytes, such as "20GB": each round adds
            this much, and the order does not depend on the link, but the first rounds may wait. A list: the order of an
            earlier run, from `loader.admissions`, then "auto".

    Raises:
        ConfigError: an invalid value.
    """

    # Whether a dataset that grows so can be joined to another one.
    joins: ClassVar[bool] = False

    reuse: int
    epoch_samples: int
    round_bytes: str | int | Sequence[int] = "auto"

    def __post_init__(self) -> None:
        for name in ("reuse", "epoch_samples"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name}={value!r} must be a whole number of at least 1", field=name)
        rounds: object = self.round_bytes
        if isinstance(rounds, str | int):
            self.bytes_per_round()
        elif not isinstance(rounds, Sequence) or not all(type(added) is int and added >= 0 for added in rounds):
            raise ConfigError(
                'round_bytes= must be "auto", bytes as "20GB", or the list of loader.admissions', field="round_bytes"
            )

    def bytes_per_round(self) -> int | None:
        """Returns the bytes that each round adds, or None if a round adds what has arrived.

        Raises:
            ConfigError: `round_bytes` is a text or number that is no size.
        """
        if self.round_bytes == "auto" or not isinstance(self.round_bytes, (str, int)):
            return None
        return parse_bytes(self.round_bytes, "round_bytes")

    def whole_epoch(self, global_batch: int) -> int:
        """Returns `epoch_samples` rounded to whole batches of `global_batch` samples, at least one batch."""
        return max(1, round(self.epoch_samples / global_batch)) * global_batch

    def check(self, *, on_change: str, shuffle: str, lanes_by: str | None, share_caches: str) -> None:
        """Refuses options of the dataset with which it cannot grow.

        Args:
            on_change: what becomes of a changed dataset, as `Index` has it.
            shuffle: the shuffle, as `OrderSpec` has it.
            lanes_by: what decides about the lanes, as users write it; None if they have not said it.
            share_caches: how nodes share caches, as users write it.

        Raises:
            ConfigError: an option with which the dataset cannot grow.
        """
        if on_change == "refresh":
            raise ConfigError(
                'growing= with Index(on_change="refresh"): the uses of a changed dataset cannot be level; begin a new '
                "run",
                field="growing",
            )
        if shuffle == "none":
            raise ConfigError("growing= with shuffle=False: samples are admitted in random order", field="growing")
        if lanes_by is not None:
            raise ConfigError(
                f"growing= with Order(lanes_by={lanes_by!r}): its lanes follow from the seed", field="lanes_by"
            )
        if share_caches != "off":
            raise ConfigError(
                f"growing= with share_caches={share_caches!r}: run the engines as services with [peers] members",
                field="share_caches",
            )

    def check_balance(self) -> None:
        """Refuses batches of equal cost.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "balance= with growing=: it changes places with samples that have not arrived; leave one out",
            field="balance",
        )

    def check_refresh(self) -> None:
        """Refuses a list of other objects.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "a growing dataset cannot change: the uses of its samples would not be level", field="growing"
        )

    def check_member(self, name: str) -> None:
        """Refuses the dataset as a member of a mix.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"member {name}: growing= is for a dataset alone; the order of a mix must not depend on what arrives",
            field="growing",
            member=name,
        )


@dataclass(frozen=True, repr=False)
class NotGrowing:
    """Stands for `Growing` in a dataset that does not grow: it takes any option."""

    joins: ClassVar[bool] = True

    def __repr__(self) -> str:
        return "None"

    def check(self, *, on_change: str, shuffle: str, lanes_by: str | None, share_caches: str) -> None:
        """Takes any options of the dataset."""

    def check_balance(self) -> None:
        """Takes batches of equal cost."""

    def check_refresh(self) -> None:
        """Takes a list of other objects."""

    def check_member(self, name: str) -> None:
        """Takes the dataset as a member of a mix."""


NOT_GROWING = NotGrowing()
AnyGrowing: TypeAlias = Growing | NotGrowing


def read_growing(given: object) -> AnyGrowing:
    """Returns how a dataset grows, from the user's argument `growing=`; None means that it does not grow.

    Raises:
        ConfigError: neither None nor a `Growing`.
    """
    if given is None:
        return NOT_GROWING
    if not isinstance(given, Growing):
        raise ConfigError(f"growing={given!r} is not a streamer.Growing", field="growing")
    return given
