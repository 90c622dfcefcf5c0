"""Sends the functions of a script by value from processes that multiprocessing has started, too."""

from __future__ import annotations

import sys

import cloudpickle  # type: ignore[import-untyped]

# What `__main__` is called in a process of mp.spawn, where it is imported again.
_SPAWNED_MAIN = "__mp_main__"


def send_main_by_value() -> None:
    """Makes cloudpickle send what the script defines by value, as it does by itself for a module called `__main__`.

    A worker is another process, which has no module of that name.
    """
    module = sys.modules.get(_SPAWNED_MAIN)
    if module is not None and _SPAWNED_MAIN not in cloudpickle.list_registry_pickle_by_value():
        cloudpickle.register_pickle_by_value(module)
