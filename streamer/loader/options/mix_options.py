"""The options of a mix, checked when it is constructed, and as a TOML file says them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args

from streamer.batches import checks
from streamer.batches.removed import refuse_removed
from streamer.batches.rows.options import Balance, Estimate
from streamer.config import read_toml
from streamer.decode.rule import Decode
from streamer.errors import ConfigError
from streamer.formats.registry import find_format
from streamer.loader.options.arguments import Index, Order, Skip
from streamer.loader.options.dataset_options import DatasetOptions, StreamOptions
from streamer.order.mix import Batching, Homogeneous, MixRequest, Shares, Weights
from streamer.order.spec import shuffle_mode
from streamer.wire.messages import MAX_PARTS

# Set for the whole mix, and refused on a member; each has its own seed.
_OF_THE_MIX = [entry.name for entry in fields(StreamOptions) if entry.name != "seed"]
# Of an Order; refused on a mix and on its members, with the reason.
_OF_A_DATASET = {
    "cut": "the lanes of a mix follow from the seeds of its members",
    "peers": "for a mix, run the engines as services with [peers] members",
}
# Arguments that a file has as tables, and what they become.
_TABLES = {
    "manifest": Index,
    "order": Order,
    "on_error": Skip,
    "decode": Decode,
    "batching": Homogeneous,
    "balance": Balance,
}
# Keys that tell a table of Weights from weights by name.
_WEIGHTS = {"values", "temperature"}
# Equal in all members: they are read through one engine.
_IN_COMMON = ("engine", "cache_dir", "cache_bytes")


@dataclass(frozen=True, kw_only=True)
class MixOptions(StreamOptions):
    """The arguments of `MixedDataset`, which documents them.

    Attributes:
        names: of the members, in order.
        shares: how much of each member.
    """

    names: tuple[str, ...]
    shares: Shares
    batching: Batching | Homogeneous = "stratified"
    source_key: str | None = "__source__"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.batching, Homogeneous):
            checks.one_of("batching", self.batching, get_args(Batching))
        for option, reason in _OF_A_DATASET.items():
            if getattr(self.order, option) != getattr(Order(), option):
                raise ConfigError(f"Order({option}=...) is for a dataset alone; {reason}", field=option)
        if self.source_key == "":
            raise ConfigError("source_key='' is not a name of a field; None adds no field", field="source_key")

    @property
    def request(self) -> MixRequest:
        """The order that is asked for, without the sizes of the members."""
        batching: Batching = "homogeneous" if isinstance(self.batching, Homogeneous) else self.batching
        group = self.batching.group if isinstance(self.batching, Homogeneous) else None
        return MixRequest(self.shares, self.seed, batching, self.order.lanes, self.order.shuffle_window, group)


def check_names(names: Sequence[object]) -> tuple[str, ...]:
    """The names of the members.

    Raises:
        ConfigError: too few, too many, or no texts.
    """
    if not 1 <= len(names) <= MAX_PARTS:
        raise ConfigError(f"members has {len(names)} entries; a mix has 1 to {MAX_PARTS}", field="members")
    for name in names:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"members: the name {name!r} is not a text", field="members")
    return tuple(str(name) for name in names)


def check_members(members: Mapping[str, DatasetOptions]) -> None:
    """Checks the options of the members.

    Raises:
        ConfigError: an option that belongs to the mix, or one that differs and must not.
    """
    for name, options in members.items():
        _check_member(name, options)
    _check_alike(members, "packing", "cost")
    _check_alike(members, "balance", "lengths")
    first_name, first = next(iter(members.items()))
    for name, options in members.items():
        for option in _IN_COMMON:
            if getattr(first, option) != getattr(options, option):
                raise _differ(option, (first_name, first), (name, options))
        if (shuffle_mode(first.shuffle) == "none") != (shuffle_mode(options.shuffle) == "none"):
            raise _differ("shuffle", (first_name, first), (name, options))


def _check_alike(members: Mapping[str, DatasetOptions], option: str, source: str) -> None:
    """Makes sure that rows of all members are alike, and balanced alike, but for the source of their lengths."""
    first_name, first = next(iter(members.items()))
    for name, options in members.items():
        given = [getattr(of, option) for of in (first, options)]
        one, other = (None if each is None else replace(each, **{source: None}) for each in given)
        costs = [getattr(each, source, None) for each in given]
        safety = [cost.safety if isinstance(cost, Estimate) else None for cost in costs]
        if option == "packing" and one == other and safety[0] != safety[1]:
            raise ConfigError(
                f"members {first_name} and {name}: rows are equally full where all tokens are known, or all are "
                "estimated with the same safety; count them with streamer.measure, or give both an Estimate",
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


def _check_member(name: str, options: DatasetOptions) -> None:
    if options.growing is not None:
        raise ConfigError(
            f"member {name}: growing= is for a dataset alone; the order of a mix must not depend on what arrives",
            field="growing",
            member=name,
        )
    for option, reason in _OF_A_DATASET.items():
        if getattr(options.order, option) != getattr(Order(), option):
            raise ConfigError(
                f"member {name}: Order({option}=...) is for a dataset alone; {reason}", field=option, member=name
            )
    default = DatasetOptions(urls=options.urls)
    for option in _OF_THE_MIX:
        if getattr(options, option) != getattr(default, option):
            raise ConfigError(
                f"member {name}: {option}={getattr(options, option)!r} is an option of the whole; pass it to "
                "MixedDataset",
                field=option,
                member=name,
            )


def _differ(option: str, first: tuple[str, DatasetOptions], other: tuple[str, DatasetOptions]) -> ConfigError:
    values = f"{getattr(first[1], option)!r} and {getattr(other[1], option)!r}"
    return ConfigError(
        f"members {first[0]} and {other[0]} differ in {option}: {values}; a mix is read through one engine and in one "
        "order, so give both the same",
        field=option,
        members=f"{first[0]}, {other[0]}",
    )


def read_mix(path: Path) -> tuple[dict[str, dict[str, object]], dict[str, object]]:
    """The options of the members by name, and those of the mix.

    Raises:
        ConfigError: no such file, not TOML, or no table of members with a url each.
    """
    options = read_toml(path)
    members = options.pop("members", None)
    if not isinstance(members, dict) or not members:
        raise ConfigError(f'{path} has no members: a table [members.NAME] with url = "..." for each', field="members")
    for name, member in members.items():
        if not isinstance(member, dict) or "url" not in member:
            raise ConfigError(f'{path}: member {name} has no url: [members.{name}] with url = "..."', field="url")
    return members, options


def check_keys(where: str, options: Mapping[str, object], takes: type, of: str) -> None:
    """Refuses options that a class does not have.

    Args:
        where: file and member, for messages.
        options: those of the file, by name.
        takes: the class, or one that is made from it.
        of: name of the class.

    Raises:
        ConfigError: names the option, and those that there are, or what has taken its place.
    """
    refuse_removed(of, options, f"{where}: ")
    parameters = inspect.signature(takes).parameters.values()
    known = [entry.name for entry in parameters if entry.kind is not entry.VAR_KEYWORD and entry.name != "members"]
    for name in options:
        if name not in known:
            raise ConfigError(f"{where} has no option {name!r}; it has {', '.join(sorted(known))}", field=name)


def grouped(options: Mapping[str, object], given: Mapping[str, object], names: Sequence[str] = ()) -> dict[str, object]:
    """The arguments that the options of a file stand for: tables become the objects that group arguments.

    Args:
        options: Options of the file, by name.
        given: Options that are given in Python, by name; taken where the file says nothing, also for single fields.
        names: Names of the members of a mix.

    Raises:
        ConfigError: an option that a table does not have, or an invalid value.
    """
    made = {**given, **options}
    for name, value in options.items():
        table = {"url": value} if name == "manifest" and isinstance(value, str) else value
        if not isinstance(table, Mapping):
            continue
        if name == "format":
            own = dict(table)
            made[name] = find_format(str(own.pop("name", "")), own)
        elif name in _TABLES:
            made[name] = _made(_TABLES[name], table, name, given)
        elif name == "weights" and table.keys() & _WEIGHTS - set(names):
            made[name] = _made(Weights, table, name, {})
    return made


def _made(kind: type[Any], table: Mapping[str, object], name: str, given: Mapping[str, object]) -> object:
    known = [entry.name for entry in fields(kind)]
    for key in table:
        if key not in known:
            raise ConfigError(f"{name} has no option {key!r}; it has {', '.join(sorted(known))}", field=key)
    if name in given and kind in (Index, Decode):  # the only ones that members have
        before = kind.of(given[name])
        table = {**{key: getattr(before, key) for key in known}, **table}
    return kind(**table)
