"""Defines groups of arguments of datasets and mixes: `Order`, `Index` and `Skip`.

Users make them. `loader/dataset.py`, `loader/mixed_dataset.py` and the options of this folder check and keep them.
"""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal, TypeVar, get_args

from streamer.batches import checks
from streamer.batches.skipping import OnError, SkipRules
from streamer.errors import ConfigError
from streamer.order.plan import LastBatch
from streamer.order.spec import LanesBy
from streamer.removed import check_options, warn_of

OnChange = Literal["raise", "refresh"]
OnDamage = Literal["raise", "skip"]
Sharing = Literal["off", "auto"]
Url = str | os.PathLike[str]
G = TypeVar("G")


@check_options
@dataclass(frozen=True, kw_only=True)
class Order:
    """Holds further choices that fix the order, besides `shuffle` and `seed`. Rarely needed.

        StreamingDataset(url, order=Order(last_batch="drop"))

    Args:
        lanes: Number of streams that an epoch is dealt into; a batch takes equally many samples from each. By default
            it is chosen from the numbers of chunks and of samples in a batch.
        shuffle_window: Number of chunks that are open together over all nodes, by default chosen likewise.
        lanes_by: What decides which chunks share a lane, and so which node reads and keeps them. With "seed" it is the
            seed. With "key" it is the key of each chunk, so that runs with other seeds find in each node's cache what
            the last run left there. With "epoch" it is the seed and the epoch. By default "seed", or what the loaded
            state has. Not for a mix.
        last_batch: What becomes of the last batch if samples are missing. With "fill" repeats fill it, which `repeated`
            marks; with "short" it stays short, on one rank only; with "drop" it is left out. By default "short" on one
            rank, and "fill" on several, which make the same number of steps.
        name: Name that tells two datasets of one job apart when only their batches differ; loaders of one dataset
            need none.
        peers: Earlier name of the dataset's `share_caches=`; a value other than "off" warns.

    Raises:
        ConfigError: an invalid value.
    """

    lanes: int | None = None
    shuffle_window: int | None = None
    lanes_by: LanesBy | None = None
    last_batch: LastBatch | None = None
    name: str = ""
    peers: Sharing = field(default="off", repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("lanes", "shuffle_window"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, checks.at_least(name, value, 1))
        checks.one_of("lanes_by", self.lanes_by, (None, *get_args(LanesBy)))
        checks.one_of("last_batch", self.last_batch, (None, *get_args(LastBatch)))
        if not isinstance(self.name, str):
            raise ConfigError(f"name={self.name!r} is not a text", field="name")
        if checks.one_of("peers", self.peers, get_args(Sharing)) != "off":
            # The caller of the constructor, past `check_options` and the `__init__` of the dataclass.
            warn_of("peers= of Order is now share_caches= of the dataset", stacklevel=4)

    @property
    def free_parts(self) -> frozenset[str]:
        """Names of the parts of the order that are chosen automatically."""
        given = {"lanes": self.lanes, "window": self.shuffle_window, "lanes_by": self.lanes_by}
        return frozenset(part for part, value in given.items() if value is None)


@check_options
@dataclass(frozen=True)
class Index:
    """Says where the manifest of a dataset is, and how the objects are listed and indexed at first use.

        StreamingDataset(url, manifest=Index(damaged="skip"))

    Args:
        url: Url or path of a built manifest (`streamer index`), or None if it is found or built at first use.
        max_seconds: Longest time that building at first use may take; a manifest that would take longer is not built.
        damaged: What becomes of damaged containers: "raise", or "skip", which leaves them out; a warning names them.
        on_change: With "raise" the dataset is fixed at first use, and an object that changes later is an
            ObjectChangedError. With "refresh" the objects are listed again before each epoch, see
            `StreamingDataset.refresh`; within an epoch a changed object is still an error.

    Raises:
        ConfigError: an invalid value.
    """

    url: Url | None = None
    _: KW_ONLY
    max_seconds: float = 600.0
    damaged: OnDamage = "raise"
    on_change: OnChange = "raise"

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", checks.path("manifest", self.url))
        checks.seconds("max_seconds", self.max_seconds)
        checks.one_of("damaged", self.damaged, get_args(OnDamage))
        checks.one_of("on_change", self.on_change, get_args(OnChange))

    @property
    def url_text(self) -> str | None:
        """The url or path of the manifest as a text, or None."""
        return None if self.url is None else os.fspath(self.url)

    @classmethod
    def of(cls, given: Url | Index | None) -> Index:
        """Returns the argument `manifest=` of a user as an `Index`.

        Raises:
            ConfigError: it is neither a url nor an Index.
        """
        return given if isinstance(given, Index) else cls(given)


@dataclass(frozen=True)
class Skip:
    """Replaces samples that cannot be decoded or transformed by another one of the batch, marked as a repeat.

    `on_error="skip"` is `on_error=Skip()`.

    Args:
        budget: Number of samples that may be skipped before all ranks raise, over all epochs and ranks; per process
            under a plain DataLoader.

    Raises:
        ConfigError: an invalid value.
    """

    budget: int = 100

    def __post_init__(self) -> None:
        object.__setattr__(self, "budget", checks.at_least("budget", self.budget, 0))


def skip_rules(on_error: OnError | Skip) -> SkipRules:
    """Returns the rules that `on_error=` stands for.

    Raises:
        ConfigError: it is neither "raise" nor "skip" nor a Skip.
    """
    if isinstance(on_error, Skip):
        return SkipRules("skip", on_error.budget)
    return SkipRules(checks.one_of("on_error", on_error, get_args(OnError)))


def given_or_default(name: str, value: object, kind: type[G]) -> G:
    """Returns the value of an argument, or the defaults of its class for None.

    Args:
        name: Name of the argument, for the error.
        value: What the user has given.
        kind: Class of the argument.

    Raises:
        ConfigError: the value is neither None nor of the class.
    """
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise ConfigError(f"{name}={value!r} is not a streamer.{kind.__name__}", field=name)
    return value
