"""Seeds, for each sample, the generators that user code holds.

Every worker has a copy of such a generator: without a seed, all workers draw the same numbers, and which sample gets
which of them depends on the time. The user's objects are looked at once, before the first sample; nothing is called.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import random
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import numpy as np

from streamer.order.hashing import fold

logger = logging.getLogger(__name__)

# Called with 64 bits.
Seed = Callable[[int], object]

_LOW = 0xFFFFFFFF
# A function, a composition, its list, a step, its generator. Objects that are looked at, and items of one container.
_LEVELS = 5
_MOST_OBJECTS = 500
_MOST_ITEMS = 100
# They hold no generators.
_PLAIN = (type(None), bool, int, float, complex, str, bytes, np.ndarray, np.generic, type, types.ModuleType)


class OwnGenerators:
    """The generators that user code holds. Used by one thread.

    Attributes:
        found: how each one is seeded.
        refused: descriptions of generators that cannot be seeded.
    """

    def __init__(self, user_code: Iterable[object]) -> None:
        self.found: list[Seed] = []
        self.refused: list[str] = []
        for thing in _held(user_code):
            if is_generator(thing):
                self._add(_name(thing), _seed_of(thing))
            elif method := _seeding_method(thing):
                self._add(f"{_name(thing)}.{method}", _seed_by(thing, method))

    def seed(self, mixed: int) -> None:
        """Seeds each of them differently from 64 bits."""
        for number, seed in enumerate(self.found):
            seed(fold(mixed, number))

    def _add(self, name: str, seed: Seed | None) -> None:
        if seed is None:
            self.refused.append(name)
        else:
            self.found.append(seed)


def warn_of_generators(user_code: Iterable[object], *, shared: bool) -> None:
    """Logs the generators that are not seeded for each sample.

    Args:
        user_code: as above.
        shared: worker threads share the user code, so none of its generators can be seeded.
    """
    own = OwnGenerators(user_code)
    if own.found and shared:
        logger.warning(
            "the transform holds %d generators of its own, which worker threads share: its draws depend on the time. "
            "Use worker_type='process', or draw from a parameter `rng`",
            len(own.found),
        )
    if own.refused:
        logger.warning(
            "the transform holds %s, which cannot be seeded for each sample: its draws are not reproducible, and "
            "workers may draw the same. Draw from a parameter `rng` instead",
            ", ".join(sorted(set(own.refused))),
        )


def is_generator(thing: object) -> bool:
    """Whether it is a generator of Python, numpy or torch."""
    if isinstance(thing, random.Random | np.random.Generator | np.random.RandomState | np.random.BitGenerator):
        return True
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(thing, torch.Generator)


def nested_code(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yields the code of a function, and of the functions in its body."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested_code(constant)


def _held(roots: Iterable[object]) -> Iterator[object]:
    """Yields the roots and what they hold, each once, in the same order in every process.

    Not the global generators, which are seeded as such, and not what an object holds that has a method to seed it.
    """
    torch = sys.modules.get("torch")
    shared = [random._inst, np.random.mtrand._rand, *([torch.default_generator] if torch else [])]
    # Kept, so that no number is used twice.
    seen: dict[int, object] = {id(thing): thing for thing in shared}
    level = list(roots)
    for _ in range(_LEVELS):
        parts: list[object] = []
        for thing in level:
            if isinstance(thing, _PLAIN) or id(thing) in seen or len(seen) > _MOST_OBJECTS:
                continue
            seen[id(thing)] = thing
            yield thing
            if not is_generator(thing) and _seeding_method(thing) is None:
                parts += islice(_parts(thing), _MOST_ITEMS)
        level = parts


def _parts(thing: object) -> Iterator[object]:
    """Attributes, items, arguments and closures; of a function also the globals that it names."""
    if isinstance(thing, types.FunctionType):
        yield from (*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values())
        for cell in thing.__closure__ or ():
            with contextlib.suppress(ValueError):  # not assigned yet
                yield cell.cell_contents
        names = dict.fromkeys(name for code in nested_code(thing.__code__) for name in code.co_names)
        yield from (thing.__globals__[name] for name in names if name in thing.__globals__)
    elif isinstance(thing, functools.partial):
        yield from (thing.func, *thing.args, *thing.keywords.values())
    elif isinstance(thing, types.MethodType):
        yield from (thing.__self__, thing.__func__)
    elif isinstance(thing, types.BuiltinMethodType):
        yield thing.__self__
    else:
        if isinstance(thing, list | tuple):
            yield from thing
        elif isinstance(thing, dict):
            yield from thing.values()
        yield from getattr(thing, "__dict__", {}).values()
        yield vars(type(thing)).get("__call__")


def _name(thing: object) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def _seeding_method(thing: object) -> str | None:
    """The method with which albumentations, MONAI and others set the generators of a transform."""
    names = ("set_random_state", "set_random_seed")
    return next((name for name in names if callable(getattr(type(thing), name, None))), None)


def _seed_by(thing: object, method: str) -> Seed | None:
    """The way to seed by a method; None: it needs other arguments."""
    setter = getattr(thing, method)
    parameters = list(inspect.signature(setter).parameters)
    if parameters == ["random_generator", "py_random"]:
        # One pair for all steps: albumentations 2.0.8 gives each step the same number in `set_random_seed`, so that two
        # flips would always agree.
        numpy, python = np.random.Generator(np.random.PCG64(0)), random.Random(0)
        seeds = list(filter(None, map(_seed_of, (numpy, python))))
        return lambda mixed: ([seed(mixed) for seed in seeds], setter(numpy, python))
    try:
        inspect.signature(setter).bind(0)
    except TypeError:
        return None
    return lambda mixed: setter(mixed & _LOW)


def _seed_of(generator: object) -> Seed | None:
    """The way to seed a generator in place; None: there is none."""
    if isinstance(generator, np.random.Generator):
        return _seed_of(generator.bit_generator)
    if isinstance(generator, np.random.BitGenerator):
        bits, kind = generator, type(generator)
        is_numpys = kind.__module__.startswith("numpy.")
        return (lambda mixed: setattr(bits, "state", kind(mixed).state)) if is_numpys else None
    if isinstance(generator, random.Random):
        return None if isinstance(generator, random.SystemRandom) else generator.seed
    if isinstance(generator, np.random.RandomState):
        return lambda mixed: generator.seed(mixed & _LOW)
    return lambda mixed: generator.manual_seed(mixed >> 1)  # type: ignore[attr-defined]  # torch's
