"""Reads arguments of datasets that test programs get as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamer import Balance, Decode, Index, Order, Skip

_GROUPS = {"balance": Balance, "decode": Decode, "manifest": Index, "on_error": Skip, "order": Order}


def read_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arguments whose tables are the objects that group arguments."""
    return {
        name: _GROUPS[name](**value) if name in _GROUPS and isinstance(value, Mapping) else value
        for name, value in options.items()
    }
