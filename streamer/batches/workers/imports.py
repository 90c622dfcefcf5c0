"""Finds the modules that user code needs, without running it, so that the fork server imports them for all workers.

`loader/options/loader_options.py` calls it for the transforms, decoders and collate function of a loader.
"""

from __future__ import annotations

import pickletools
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator

import cloudpickle  # type: ignore[import-untyped]

from streamer.batches.samples.seeding import walk_code
from streamer.batches.samples.sent_code import send_main_by_value

LIBRARIES = tuple(filter(None, map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))))
# Modules that a fork server has anyway, or must not import.
_EXCLUDED = frozenset(["__main__", "__mp_main__", "builtins", "sys"])


def find_modules(objects: Iterable[object]) -> list[str]:
    """Finds the modules that the objects need where they are unpickled and called.

    Only modules that this process has imported are considered. It finds the modules that the pickle of an object names.
    It also finds those that a function imports in its body, if its code is part of the pickle, or of a module that the
    pickle names and that is not an installed library.

    Args:
        objects: transforms, collate functions, decoders. Objects that cannot be pickled are left out.

    Returns:
        Names of modules, in the order in which this process imported them, without those of streamer.
    """
    send_main_by_value()
    words: set[str] = set()
    for thing in objects:
        try:
            # Buffers stay out of the pickle: a transform may contain gigabytes of arrays, which name no modules.
            pickled = cloudpickle.dumps(thing, protocol=5, buffer_callback=lambda _: None)
        except Exception:  # noqa: BLE001 - the error is reported when the object is sent
            continue
        # All texts of the pickle count, among them the names of modules and attributes.
        for opcode, argument, _ in pickletools.genops(pickled):
            if isinstance(argument, str):
                words.update(argument.split(" ") if opcode.name == "GLOBAL" else (argument,))
    # The code of these modules is part of each pickle, so no process has to import them.
    sent = tuple(f"{name}." for name in cloudpickle.list_registry_pickle_by_value())
    referred = {name for name in _find_importable(words) if not f"{name}.".startswith(sent)}
    inside = {word for name in referred if not _is_library(name) for word in _list_names(name)}
    names = {name for name in referred | _find_importable(inside) if not name.startswith("streamer.")}
    order = {name: at for at, name in enumerate(sys.modules)}
    return sorted(names - _EXCLUDED, key=order.__getitem__)


def _find_importable(words: Iterable[str]) -> set[str]:
    """Returns the words that are names of imported modules which another process can import, too."""
    modules = ((word, sys.modules.get(word)) for word in words)
    return {word for word, module in modules if getattr(module, "__spec__", None) is not None}


def _is_library(name: str) -> bool:
    file = getattr(sys.modules[name], "__file__", None)
    return not file or file.startswith(LIBRARIES)


def _list_names(name: str) -> Iterator[str]:
    """Yields the names that the functions and methods of a module use, with those that they import."""
    for value in list(vars(sys.modules[name]).values()):
        for code in _codes(value, name):
            yield from code.co_names


def _codes(value: object, module: str) -> Iterator[types.CodeType]:
    """Yields the code of a function, or of the methods of a class, if the module has defined it."""
    value = getattr(value, "__func__", value)
    if getattr(value, "__module__", None) != module:
        return
    if isinstance(value, types.FunctionType):
        yield from walk_code(value.__code__)
    elif isinstance(value, type):
        for member in list(vars(value).values()):
            yield from _codes(member, module)
