"""The options of a mix, checked when it is constructed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, get_args

from streamer.config import RankConfig
from streamer.errors import ConfigError
from streamer.loader.rank.dataset_options import DatasetOptions, at_least, one_of
from streamer.loader.skipping import OnError
from streamer.order.spec import shuffle_mode
from streamer.wire.messages import MAX_PARTS

Batching = Literal["stratified", "random", "homogeneous"]
Stop = Literal["first_exhausted", "all_exhausted"]
Weights = Mapping[str, float]
# (first epoch, weights)
Stage = tuple[int, Weights]

# What the mix sets for all members, and what all members must have in common.
_OF_THE_MIX = (
    *("batch_size", "drop_last", "rank", "world_size", "on_error", "error_budget", "stream", "lanes"),
    "shuffle_window",
)
_IN_COMMON = ("engine", "cache_dir", "cache_bytes")


@dataclass(frozen=True, kw_only=True)
class MixOptions:
    """The arguments of `MixedDataset`, which documents them.

    Attributes:
        names: of the members, in order.
        stages: (first epoch, weights), ascending, the first of epoch 0; () if the mix has other rules.
        repeat, choose: by name, or {}.
    """

    names: tuple[str, ...]
    stages: tuple[Stage, ...] = ()
    repeat: Mapping[str, float]
    choose: Mapping[str, int]
    temperature: float | None = None
    epoch_samples: int | None = None
    stop: Stop | None = None
    batching: Batching = "stratified"
    seed: int = 17
    source_key: str | None = "__source__"
    batch_size: int | None = None
    drop_last: bool = False
    lanes: int | None = None
    shuffle_window: int | None = None
    rank: int | None = None
    world_size: int | None = None
    on_error: OnError = "raise"
    error_budget: int = 100
    stream: str = ""

    def __post_init__(self) -> None:
        one_of("batching", self.batching, get_args(Batching))
        one_of("stop", self.stop, (None, *get_args(Stop)))
        one_of("on_error", self.on_error, ("raise", "skip"))
        for name in ("epoch_samples", "batch_size", "lanes", "shuffle_window"):
            at_least(name, getattr(self, name), 1)
        for name in ("seed", "error_budget"):
            at_least(name, getattr(self, name), 0)
        if self.source_key == "":
            raise ConfigError(f"source_key={self.source_key!r} is not a text; None adds no key", field="source_key")
        self._check_rules()

    def _check_rules(self) -> None:
        """How much of each member: one rule at most; a length where the rule leaves it open."""
        rules = {"weights": self.stages, "repeat": self.repeat, "choose": self.choose}
        given = [name for name, value in rules.items() if value]
        if self.temperature is not None:
            given.append("temperature")
            _positive("temperature", self.temperature)
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)} are given; pass one of them", field=given[1])
        lengths = [name for name in ("epoch_samples", "stop") if getattr(self, name) is not None]
        if lengths and not self.relative:
            rule = given[0] if given else "repeat=1, the default,"
            raise ConfigError(
                f"{lengths[0]}= is given, but {rule} fixes the length of an epoch; pass weights= or temperature= "
                "with it",
                field=lengths[0],
            )
        if len(lengths) > 1:
            raise ConfigError("epoch_samples and stop are given; pass one of them", field="stop")

    @property
    def relative(self) -> bool:
        """Whether the rule gives shares only, and not the number of samples."""
        return bool(self.stages) or self.temperature is not None

    def with_rank(self, rank_config: RankConfig) -> MixOptions:
        """The same options with this rank and world size."""
        return replace(self, rank=rank_config.rank, world_size=rank_config.world_size)

    def without_choose(self) -> MixOptions:
        """The same options for a selection, for which numbers of samples make no sense."""
        return replace(self, choose={})

    @property
    def free_parts(self) -> frozenset[str]:
        """The parts of the order that are chosen automatically."""
        given = {"lanes": self.lanes, "window": self.shuffle_window}
        return frozenset(part for part, value in given.items() if value is None)


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
        for option in _OF_THE_MIX:
            if getattr(options, option) != defaults[option]:
                raise ConfigError(
                    f"member {name}: {option}={getattr(options, option)!r} is an option of the whole; pass it to "
                    "MixedDataset",
                    field=option,
                )
    first_name, first = next(iter(members.items()))
    for name, options in members.items():
        for option in _IN_COMMON:
            _check_common(option, (first_name, getattr(first, option)), (name, getattr(options, option)))
        ordered = [shuffle_mode(each.shuffle) == "none" for each in (first, options)]
        if ordered[0] != ordered[1]:
            _check_common("shuffle", (first_name, first.shuffle), (name, options.shuffle))


def weights_by_stage(names: Sequence[str], given: object) -> tuple[Stage, ...]:
    """Weights as users write them: a mapping, or stages of (first epoch, mapping).

    Raises:
        ConfigError: an invalid weight, name or epoch.
    """
    if given is None:
        return ()
    if isinstance(given, Mapping):
        return ((0, _weights(names, given)),)
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise ConfigError(
            f"weights={given!r}: give name -> weight, or stages [(0, {{...}}), (10, {{...}})]", field="weights"
        )
    return tuple(_stages(names, given))


def numbers_by_name(option: str, names: Sequence[str], given: object) -> dict[str, float]:
    """`repeat` or `choose` as users write them: a number for all, or by name.

    Raises:
        ConfigError: an invalid number or name.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        _positive(option, given)
        return _numbers(option, names, dict.fromkeys(names, given))
    return _numbers(option, names, given)


def whole_numbers_by_name(option: str, names: Sequence[str], given: object) -> dict[str, int]:
    """As `numbers_by_name`, whole ones only."""
    found = numbers_by_name(option, names, given)
    for name, value in found.items():
        if value != int(value):
            raise ConfigError(f"{option}: {value!r} of {name} is not a whole number", field=option)
    return {name: int(value) for name, value in found.items()}


def _stages(names: Sequence[str], given: Sequence[object]) -> list[Stage]:
    found: list[Stage] = []
    for stage in given:
        if not isinstance(stage, Sequence) or len(stage) != 2 or not isinstance(stage[1], Mapping):
            raise ConfigError(f"weights: the stage {stage!r} is not (first epoch, name -> weight)", field="weights")
        epoch = stage[0]
        least = found[-1][0] + 1 if found else 0
        if not isinstance(epoch, int) or isinstance(epoch, bool) or epoch < least or (not found and epoch > 0):
            raise ConfigError(
                f"weights: a stage begins at epoch {epoch!r}; the first one begins at 0, each other one after the "
                "stage before it",
                field="weights",
            )
        found.append((epoch, _weights(names, stage[1])))
    return found


def _weights(names: Sequence[str], given: Mapping[str, object]) -> dict[str, float]:
    return _numbers("weights", names, given)


def _numbers(option: str, names: Sequence[str], given: Mapping[str, object]) -> dict[str, float]:
    unknown, missing = [name for name in given if name not in names], [name for name in names if name not in given]
    if unknown or missing:
        raise ConfigError(
            f"{option} and members do not have the same names: without a member: {_listed(unknown)}; without a "
            f"number in {option}: {_listed(missing)}",
            field=option,
        )
    found = {}
    for name in names:
        value = given[name]
        if not _is_number(value) or not 0 <= float(str(value)) < math.inf:
            raise ConfigError(f"{option}: {value!r} of {name} is not a number from 0 up", field=option)
        found[name] = value
    if not any(found.values()):
        raise ConfigError(f"{option}: all are 0", field=option)
    return found  # type: ignore[return-value]


def _positive(option: str, value: object) -> None:
    if not _is_number(value) or not 0 < float(str(value)) < math.inf:
        raise ConfigError(f"{option}={value!r} is not a number above 0", field=option)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _listed(names: Sequence[object]) -> str:
    return ", ".join(map(str, names)) or "none"


def _check_common(option: str, first: tuple[str, object], other: tuple[str, object]) -> None:
    if first[1] != other[1]:
        raise ConfigError(
            f"members {first[0]} and {other[0]} differ in {option}: {first[1]!r} and {other[1]!r}; a mix reads "
            "through one engine, in one order: give them the same",
            field=option,
        )
