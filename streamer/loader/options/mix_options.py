"""Keeps the options of a mix, and checks them and its members when it is constructed.

`loader/mixed_dataset.py` makes them, and `loader/kinds/mix.py` reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import get_args

from streamer.batches import checks
from streamer.batches.rows.options import Estimate
from streamer.errors import ConfigError
from streamer.loader.options.dataset_options import DatasetOptions, StreamOptions
from streamer.order.mix import Batching, Homogeneous, MixRequest, Shares
from streamer.order.spec import shuffle_mode
from streamer.wire.messages import MAX_PARTS

# Names of options that are set for the whole mix, and refused on a member. The seed is none: each member has its own.
_OF_THE_MIX = [entry.name for entry in fields(StreamOptions) if entry.name != "seed"]
# Reasons why options of a dataset are refused on a mix and on its members.
_NO_LANES_BY = "Order(lanes_by=...) is for a dataset alone; the lanes of a mix follow from the seeds of its members"
_NO_SHARING = "share_caches= is for a dataset alone; for a mix, run the engines as services with [peers] members"
# Options that are equal in all members, which are read through one engine.
_IN_COMMON = ("engine", "cache_dir", "cache_bytes")


@dataclass(frozen=True, kw_only=True)
class MixOptions(StreamOptions):
    """Holds the arguments of `MixedDataset`, which documents them.

    Raises:
        ConfigError: an invalid value.

    Attributes:
        names: Names of the members, in order.
        shares: How much of each member an epoch has.
    """

    names: tuple[str, ...]
    shares: Shares
    batching: Batching | Homogeneous = "stratified"
    source_key: str | None = "__source__"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.batching, Homogeneous):
            checks.one_of("batching", self.batching, get_args(Batching))
        if self.order.lanes_by is not None:
            raise ConfigError(_NO_LANES_BY, field="lanes_by")
        if self.order.peers != "off":
            raise ConfigError(_NO_SHARING, field="share_caches")
        if self.source_key == "":
            raise ConfigError("source_key='' is not a name of a field; None adds no field", field="source_key")

    @property
    def request(self) -> MixRequest:
        """Order that is asked for, without the sizes of the members."""
        batching: Batching = "homogeneous" if isinstance(self.batching, Homogeneous) else self.batching
        group = self.batching.group if isinstance(self.batching, Homogeneous) else None
        return MixRequest(
            shares=self.shares,
            seed=self.seed,
            batching=batching,
            lanes=self.order.lanes,
            window=self.order.shuffle_window,
            group=group,
        )


def check_names(names: Sequence[object]) -> tuple[str, ...]:
    """Returns the names of the members, checked.

    Raises:
        ConfigError: there are none or too many, or one is no text or is empty.
    """
    if not 1 <= len(names) <= MAX_PARTS:
        raise ConfigError(f"members has {len(names)} entries; a mix has 1 to {MAX_PARTS}", field="members")
    for name in names:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"members: the name {name!r} is not a text", field="members")
    return tuple(str(name) for name in names)


def check_members(members: Mapping[str, DatasetOptions]) -> None:
    """Checks the options of the members, by name.

    Raises:
        ConfigError: a member has an option of the whole mix or one that no member may have, or two members differ in
            one that must be equal.
    """
    for name, options in members.items():
        options.growing.check_member(name)
        if options.order.lanes_by is not None:
            raise ConfigError(f"member {name}: {_NO_LANES_BY}", field="lanes_by", member=name)
        if options.share_caches != "off":
            raise ConfigError(f"member {name}: {_NO_SHARING}", field="share_caches", member=name)
        default = DatasetOptions(urls=options.urls)
        for option in _OF_THE_MIX:
            if getattr(options, option) != getattr(default, option):
                raise ConfigError(
                    f"member {name}: {option}={getattr(options, option)!r} is an option of the whole; pass it to "
                    "MixedDataset",
                    field=option,
                    member=name,
                )
    _check_alike(members, "packing", "lengths")
    _check_alike(members, "balance", "lengths")
    first_name, first = next(iter(members.items()))
    for name, options in members.items():
        for option in _IN_COMMON:
            if getattr(first, option) != getattr(options, option):
                raise _differ(option, (first_name, first), (name, options))
        if (shuffle_mode(first.shuffle) == "none") != (shuffle_mode(options.shuffle) == "none"):
            raise _differ("shuffle", (first_name, first), (name, options))


def _check_alike(members: Mapping[str, DatasetOptions], option: str, source: str) -> None:
    """Raises ConfigError if members differ in an option of rows; the source of their lengths may differ.

    Args:
        members: Options of the members, by name.
        option: "packing" or "balance".
        source: Name of the attribute of that option which has the source of lengths.
    """
    first_name, first = next(iter(members.items()))
    for name, options in members.items():
        given = [getattr(each, option) for each in (first, options)]
        one, other = (each.drop_source() for each in given)
        costs = [getattr(each, source, None) for each in given]
        margins = [cost.margin if isinstance(cost, Estimate) else None for cost in costs]
        if option == "packing" and one == other and margins[0] != margins[1]:
            raise ConfigError(
                f"members {first_name} and {name}: rows are equally full where all tokens are known, or all are "
                "estimated with the same margin; count them with streamer.measure_lengths, or give both an Estimate",
                field=option,
                members=f"{first_name}, {name}",
            )
        if one != other:
            raise ConfigError(
                f"members {first_name} and {name} differ in {option}: {one} and {other}; a batch has rows of one kind: "
                "give all members the same, or none",
                field=option,
                members=f"{first_name}, {name}",
            )


def _differ(option: str, first: tuple[str, DatasetOptions], other: tuple[str, DatasetOptions]) -> ConfigError:
    """Returns the error of two members, each with its name, that differ in an option."""
    values = f"{getattr(first[1], option)!r} and {getattr(other[1], option)!r}"
    return ConfigError(
        f"members {first[0]} and {other[0]} differ in {option}: {values}; a mix is read through one engine and in one "
        "order, so give both the same",
        field=option,
        members=f"{first[0]}, {other[0]}",
    )


def refuse_linear(weights: object) -> None:
    """Refuses stages of weights with "linear", between which earlier versions went in equal steps.

    Raises:
        ConfigError: a stage has "linear"; the message says what to write.
    """
    if isinstance(weights, Sequence) and any(isinstance(stage, Sequence) and "linear" in stage for stage in weights):
        raise ConfigError(
            'weights=: stages are (epoch, weights), and "linear" is not there any more: write one stage for each epoch '
            "[(epoch, {name: a + (b - a) * epoch / 10 for ...}) for epoch in range(11)]",
            field="weights",
        )
