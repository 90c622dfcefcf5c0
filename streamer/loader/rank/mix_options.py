"""The options of a mix, checked when it is constructed, and as a TOML file says them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import get_args

from streamer.config import read_toml
from streamer.errors import ConfigError
from streamer.loader import checks
from streamer.loader.rank.dataset_options import DatasetOptions, StreamOptions
from streamer.order.mix import Batching, MixRequest, Shares
from streamer.order.spec import shuffle_mode
from streamer.wire.messages import MAX_PARTS

# Set for the whole mix, and refused on a member; each has its own seed.
_OF_THE_MIX = [entry.name for entry in fields(StreamOptions) if entry.name != "seed"]
# Refused on a member, with the reason.
_NOT_MIXED = {
    "growing": "the order of a mix must not depend on what arrives",
    "cut": "the lanes of a mix follow from the seeds of its members",
    "peers": "for a mix, run the engines as services with [peers] members",
}
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
    batching: Batching = "stratified"
    group: int | None = None
    source_key: str | None = "__source__"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of("batching", self.batching, get_args(Batching))
        self._set_at_least("group", 1)
        if self.group is not None and self.batching != "homogeneous":
            raise ConfigError(f"group= goes with batching='homogeneous', not {self.batching!r}", field="group")
        if self.source_key == "":
            raise ConfigError("source_key='' is no name of a field; None adds no field", field="source_key")

    @property
    def request(self) -> MixRequest:
        """The order that is asked for, without the sizes of the members."""
        return MixRequest(self.shares, self.seed, self.batching, self.lanes, self.shuffle_window, self.group)


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
    defaults = {entry.name: entry.default for entry in fields(DatasetOptions)}
    for name, options in members.items():
        for option, reason in _NOT_MIXED.items():
            if getattr(options, option) != defaults[option]:
                raise ConfigError(
                    f"member {name}: {option}= is for a dataset alone; {reason}", field=option, member=name
                )
        for option in _OF_THE_MIX:
            if getattr(options, option) != defaults[option]:
                raise ConfigError(
                    f"member {name}: {option}={getattr(options, option)!r} is an option of the whole; pass it to "
                    "MixedDataset",
                    field=option,
                    member=name,
                )
    first_name, first = next(iter(members.items()))
    for name, options in members.items():
        for option in _IN_COMMON:
            if getattr(first, option) != getattr(options, option):
                raise _differ(option, (first_name, first), (name, options))
        if (shuffle_mode(first.shuffle) == "none") != (shuffle_mode(options.shuffle) == "none"):
            raise _differ("shuffle", (first_name, first), (name, options))


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


def check_keys(where: str, options: Mapping[str, object], takes: Callable[..., object]) -> None:
    """Refuses options that a constructor does not have.

    Raises:
        ConfigError: names the option and those that there are.
    """
    known = [name for name in inspect.signature(takes).parameters if name != "members"]
    for name in options:
        if name not in known:
            raise ConfigError(f"{where} has no option {name!r}; it has {', '.join(sorted(known))}", field=name)
