"""How a dataset grows: the user's options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from streamer.config import parse_bytes
from streamer.errors import ConfigError


@dataclass(frozen=True)
class Growing:
    """Trains on the samples that have arrived, each several times, while the others are on their way.

    For a link that brings fewer bytes than the trainer reads. The samples are admitted in a random order, pass after
    pass; each admitted sample is trained on `reuse` times before it leaves. After any number of steps no sample has
    been used more than `reuse + 1` times more often than another one.

    Args:
        reuse: number of uses of each admitted sample: 1.25 times the trainer's rate divided by the link's, rounded up.
            The stall report names the number for the measured rates.
        epoch_samples: samples of an epoch, over all ranks; rounded to whole global batches.
        grow: "auto": each round trains on what has arrived on all ranks; bytes, such as "20GB": each round adds this
            much, and the order does not depend on the link, but the first rounds may wait; a list: the order of an
            earlier run, from `loader.admissions`, then "auto".

    Raises:
        ConfigError: an invalid value.
    """

    reuse: int
    epoch_samples: int
    grow: str | int | Sequence[int] = "auto"

    def __post_init__(self) -> None:
        for name in ("reuse", "epoch_samples"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name}={value!r} must be a whole number of at least 1", field=name)
        if isinstance(self.grow, (str, int)):
            self.grow_bytes()
        elif not all(type(added) is int and added >= 0 for added in self.grow):
            raise ConfigError('grow= must be "auto", bytes as "20GB", or the list of loader.admissions', field="grow")

    def grow_bytes(self) -> int | None:
        """Returns the bytes that each round adds; None: what has arrived.

        Raises:
            ConfigError: it is not a size.
        """
        if self.grow == "auto" or not isinstance(self.grow, (str, int)):
            return None
        return parse_bytes(self.grow, "grow")

    def whole_epoch(self, global_batch: int) -> int:
        """Returns `epoch_samples` in whole global batches, at least one."""
        return max(1, round(self.epoch_samples / global_batch)) * global_batch
