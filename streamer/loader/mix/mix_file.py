"""A mix as a TOML file says it: urls and plain options of the members, and how much of each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path

from streamer.config import read_toml
from streamer.errors import ConfigError

_MEMBERS = "members"


def read_mix(path: Path) -> tuple[dict[str, dict[str, object]], dict[str, object]]:
    """The options of the members by name, and those of the mix.

    Raises:
        ConfigError: no such file, not TOML, or no table of members with a url each.
    """
    options = read_toml(path)
    members = options.pop(_MEMBERS, None)
    if not isinstance(members, dict) or not members:
        raise ConfigError(f'{path} has no members: a table [members.NAME] with url = "..." for each', field=_MEMBERS)
    for name, member in members.items():
        if not isinstance(member, dict) or "url" not in member:
            raise ConfigError(f'{path}: member {name} has no url: [members.{name}] with url = "..."', field="url")
    return members, options


def check_keys(where: str, options: Mapping[str, object], takes: Callable[..., object]) -> None:
    """Refuses options that a constructor does not have.

    Raises:
        ConfigError: names the option and those that there are.
    """
    known = [name for name in inspect.signature(takes).parameters if name != _MEMBERS]
    for name in options:
        if name not in known:
            raise ConfigError(f"{where} has no option {name!r}; it has {', '.join(sorted(known))}", field=name)
