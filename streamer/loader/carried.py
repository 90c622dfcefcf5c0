"""User code that carries tokens or samples from batch to batch: its state travels in that of the loader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from streamer.config import RankConfig
from streamer.errors import ConfigError, StateError

_KEY = "stateful"


class Stateful(Protocol):
    """An object of the trainer's process that holds something of the batches it was given."""

    def state_dict(self) -> Mapping[str, object]:
        """Returns its state, as values for the checkpoint."""
        ...

    def load_state_dict(self, state: dict[str, object], /) -> object:
        """Restores a state that `state_dict` returned."""
        ...


class Carried:
    """The object of a loader, if it has one.

    Raises:
        ConfigError: it has no such methods.
    """

    def __init__(self, stateful: Stateful | None) -> None:
        methods = (getattr(stateful, name, None) for name in ("state_dict", "load_state_dict"))
        if stateful is not None and not all(map(callable, methods)):
            raise ConfigError(
                f"stateful={type(stateful).__name__}: it needs state_dict() and load_state_dict()", field="stateful"
            )
        self._stateful = stateful

    @property
    def stateful(self) -> Stateful | None:
        """The object."""
        return self._stateful

    def save(self, state: dict[str, object], rank_config: RankConfig) -> dict[str, object]:
        """The loader's state with that of the object, which belongs to this rank alone."""
        if self._stateful is not None:
            rank = rank_config.rank
            world = rank_config.world_size
            state[_KEY] = {"rank": rank, "world_size": world, "state": self._stateful.state_dict()}
        return state

    def check(self, state: Mapping[str, object], rank_config: RankConfig) -> dict[str, object]:
        """The loader's own part of a state.

        Raises:
            StateError: the state of an object and none to take it, the opposite, or that of another rank.
        """
        if self._stateful is None:
            refuse_carried(state, "give the loader stateful=, the object that the saved run had")
        else:
            _check_place(state.get(_KEY), rank_config)
        return {name: value for name, value in state.items() if name != _KEY}

    def load(self, state: Mapping[str, object]) -> None:
        """Gives the object its part of a state that was checked."""
        saved = state.get(_KEY)
        if self._stateful is not None and isinstance(saved, Mapping):
            self._stateful.load_state_dict(saved["state"])


def refuse_carried(state: Mapping[str, object], remedy: str) -> None:
    """Makes sure that a state has no part that would be left out.

    Raises:
        StateError: it has one.
    """
    if _KEY in state:
        raise StateError(
            f"the state holds what an object carried over batches, which would be lost: {remedy}, or remove "
            f"{_KEY!r} from the state to go on without it",
            field=_KEY,
        )


def _check_place(saved: object, rank_config: RankConfig) -> None:
    if not isinstance(saved, Mapping) or not {"rank", "world_size", "state"} <= saved.keys():
        raise StateError(
            "the state was saved without stateful=, so nothing is known of what the object carried: load it without",
            field=_KEY,
        )
    rank = rank_config.rank
    world = rank_config.world_size
    if (saved["rank"], saved["world_size"]) != (rank, world):
        raise StateError(
            f"the state holds what an object carried over batches on rank {saved['rank']} of {saved['world_size']}, "
            f"and this is rank {rank} of {world}: each rank saves and loads its own; to change their number, save "
            f"where nothing is carried, and remove {_KEY!r} from the state",
            field=_KEY,
            rank=rank,
            world_size=world,
        )
