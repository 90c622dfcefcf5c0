"""Finds the objects that user code can reach: attributes, items, closures, and the globals that its functions name."""

from __future__ import annotations

import functools
import logging
import sysconfig
import types
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np

# Objects that are visited, and items of one container: a transform may hold tables of any size.
_MAX_OBJECTS, _MAX_ITEMS = 10_000, 1_000
LIBRARIES = tuple(filter(None, map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))))
# Functions of these files are not looked into: installed packages and this one.
_NOT_LOOKED_INTO = (*LIBRARIES, str(Path(__file__).parents[2]))
# Py_TPFLAGS_HEAPTYPE
_DEFINED_IN_PYTHON = 1 << 9
# Contain no objects.
_PLAIN = (type(None), bool, int, float, complex, str, bytes, np.ndarray, np.generic, type, logging.Logger)


def reachable(roots: Iterable[object]) -> Iterator[object]:
    """Yields the roots and the objects that they reach, each once, in the same order in every process.

    Functions of installed libraries are not looked into, unless they are roots. Nothing is called.

    Args:
        roots: transforms, decoders, collate functions.
    """
    queue = deque((root, True) for root in roots)
    # Kept, so that no number is used twice.
    seen: dict[int, object] = {}
    while queue and len(seen) < _MAX_OBJECTS:
        thing, root = queue.popleft()
        if isinstance(thing, _PLAIN) or id(thing) in seen:
            continue
        seen[id(thing)] = thing
        yield thing
        # The methods of a root are roots, too, but not the functions that they call.
        inherits = root and not isinstance(thing, types.FunctionType)
        queue.extend((part, inherits and isinstance(part, types.FunctionType)) for part in _parts(thing, root))


def nested_code(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yields the code of a function, and of the functions in its body."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested_code(constant)


def _parts(thing: object, root: bool) -> Iterator[object]:
    if isinstance(thing, types.FunctionType):
        yield from _parts_of_function(thing, root)
    elif isinstance(thing, types.MethodType):
        yield from (thing.__self__, thing.__func__)
    elif isinstance(thing, functools.partial):
        yield from (thing.func, *thing.args, *thing.keywords.values())
    elif isinstance(thing, types.BuiltinMethodType | types.MethodWrapperType):
        yield thing.__self__
    elif not isinstance(thing, types.ModuleType):
        if isinstance(thing, list | tuple | deque):
            yield from islice(thing, _MAX_ITEMS)
        elif isinstance(thing, dict):
            yield from islice(thing.values(), _MAX_ITEMS)
        yield from _parts_of_object(thing)


def _parts_of_function(function: types.FunctionType, root: bool) -> Iterator[object]:
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    yield from vars(function).values()
    if not root and function.__code__.co_filename.startswith(_NOT_LOOKED_INTO):
        return
    names = {name: None for code in nested_code(function.__code__) for name in code.co_names}
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, types.ModuleType):
            if not str(vars(value).get("__file__") or LIBRARIES[0]).startswith(_NOT_LOOKED_INTO):
                yield from (vars(value)[name] for name in names if name in vars(value))
        else:
            yield value


def _parts_of_object(thing: object) -> Iterator[object]:
    try:
        # Not by `getattr`: a class may compute its attributes, and raise anything.
        yield from islice(object.__getattribute__(thing, "__dict__").values(), _MAX_ITEMS)
    except AttributeError:  # it has slots only
        pass
    for kind in type(thing).__mro__:
        for value in kind.__dict__.values() if kind.__flags__ & _DEFINED_IN_PYTHON else ():
            if isinstance(value, types.MemberDescriptorType):
                yield _slot(thing, value)
            elif isinstance(value, staticmethod | classmethod):
                yield value.__func__
            elif isinstance(value, property):
                yield value.fget
            elif not isinstance(value, types.GetSetDescriptorType):
                yield value


def _slot(thing: object, descriptor: types.MemberDescriptorType) -> object:
    try:
        return descriptor.__get__(thing, type(thing))
    except AttributeError:  # not assigned yet
        return None
