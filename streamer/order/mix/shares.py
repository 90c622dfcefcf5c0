"""The proportions of a mix as a user says them, checked, and what they mean for members of known sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

Stop: TypeAlias = Literal["first_exhausted", "all_exhausted"]
Amounts: TypeAlias = Mapping[str, float]
# From an epoch on: these weights.
WeightStages: TypeAlias = Sequence[tuple[int, Amounts]]

# Integer weights: relative errors of 2**-32 are one sample in 4e9.
_SCALE = 1 << 32


class Amount(msgspec.Struct, frozen=True):
    """What the members get in the epochs of one stage.

    Attributes:
        epoch: the first one.
        passes: of each member, whole passes in every epoch; 0: by weight.
        weights: of each member, integers; 0 where it has whole passes.
        samples: of an epoch, over the members with weights, before rounding.
    """

    epoch: int
    passes: tuple[int, ...]
    weights: tuple[int, ...]
    samples: int


class Shares(msgspec.Struct, frozen=True):
    """The proportions as a user says them. None of the four: every sample once per epoch.

    Attributes:
        weights: stages of (first epoch, weight by name); relative.
        repeat: passes per epoch by name.
        choose: samples per epoch by name.
        temperature: weights are n ** (1 / temperature).
        epoch_samples: length of an epoch, with `weights` or `temperature`.
        stop: the length instead: until the first, or until every member has made one pass.
    """

    weights: tuple[tuple[int, dict[str, float]], ...] = ()
    repeat: dict[str, float] = {}
    choose: dict[str, int] = {}
    temperature: float = 0.0
    epoch_samples: int = 0
    stop: Stop | None = None

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        *,
        weights: Amounts | WeightStages | None = None,
        repeat: Amounts | float | None = None,
        choose: Mapping[str, int] | None = None,
        temperature: float | None = None,
        epoch_samples: int | None = None,
        stop: str | None = None,
    ) -> Shares:
        """Checks the arguments of a mix.

        Raises:
            ConfigError: names the argument: an unknown or missing member, a number that is no share, all shares zero,
                two of the four, a length where they fix it.
        """

    def amounts(self, samples: Mapping[str, int]) -> tuple[Amount, ...]:
        """What members of these sizes get, by stages of epochs.

        Args:
            samples: n by name, in the order of the mix.
        """
