"""Seeds randomness by seed, epoch and sample only: never by the worker, the batch or the time.

Transforms that take `rng` get a generator. The global generators, and those that user code holds, are seeded before
each call of user code. Every worker has a copy of a generator that user code holds: without a seed, all workers would
draw the same numbers, and which sample gets which of them would depend on the time. The user's objects are looked at
once, before the first sample; nothing is called.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import random
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from streamer.order.hashing import fold, fold_each

logger = logging.getLogger(__name__)

# Called with 64 bits.
Seed = Callable[[int], object]

_LOW = 0xFFFFFFFF
# Five levels: a function, a composition, its list, a step, its generator.
_LEVELS = 5
# Objects that are looked at, in all.
_MOST_OBJECTS = 500
# Parts of one object that are looked at.
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
        for thing in _walk_objects(user_code):
            if is_generator(thing):
                self._add(_describe_type(thing), _make_seeder(thing))
            elif method := _find_setter(thing):
                self._add(f"{_describe_type(thing)}.{method}", _make_method_seeder(thing, method))

    def seed(self, mixed: int) -> None:
        """Derives another seed for each generator from 64 bits, and sets it."""
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
        user_code: Transforms, decoders and collate functions.
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
    """Whether it is a random number generator of Python, numpy or torch."""
    if isinstance(thing, random.Random | np.random.Generator | np.random.RandomState | np.random.BitGenerator):
        return True
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(thing, torch.Generator)


def walk_code(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yields the code of a function, and of the functions in its body."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from walk_code(constant)


def _walk_objects(roots: Iterable[object]) -> Iterator[object]:
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
            if not is_generator(thing) and _find_setter(thing) is None:
                parts += islice(_parts(thing), _MOST_ITEMS)
        level = parts


def _parts(thing: object) -> Iterator[object]:
    """Attributes, items, arguments and closures; of a function also the globals that it names."""
    if isinstance(thing, types.FunctionType):
        yield from (*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values())
        for cell in thing.__closure__ or ():
            with contextlib.suppress(ValueError):  # not assigned yet
                yield cell.cell_contents
        names = dict.fromkeys(name for code in walk_code(thing.__code__) for name in code.co_names)
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


def _describe_type(thing: object) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def _find_setter(thing: object) -> str | None:
    """Returns the name of the method by which a transform of albumentations, MONAI or others is seeded, or None."""
    names = ("set_random_state", "set_random_seed")
    return next((name for name in names if callable(getattr(type(thing), name, None))), None)


def _make_method_seeder(thing: object, method: str) -> Seed | None:
    """Returns what seeds by a method, or None if it needs other arguments."""
    setter = getattr(thing, method)
    parameters = list(inspect.signature(setter).parameters)
    if parameters == ["random_generator", "py_random"]:
        # All steps share one pair: albumentations 2.0.8 gives each step the same number in `set_random_seed`, so that
        # two flips would always agree.
        numpy = np.random.Generator(np.random.PCG64(0))
        python = random.Random(0)
        seeds = list(filter(None, map(_make_seeder, (numpy, python))))
        return lambda mixed: ([seed(mixed) for seed in seeds], setter(numpy, python))
    try:
        inspect.signature(setter).bind(0)
    except TypeError:
        return None
    return lambda mixed: setter(mixed & _LOW)


def _make_seeder(generator: object) -> Seed | None:
    """Returns what seeds a generator in place, or None if nothing does."""
    if isinstance(generator, np.random.Generator):
        return _make_seeder(generator.bit_generator)
    if isinstance(generator, np.random.BitGenerator):
        bits = generator
        kind = type(generator)
        is_numpys = kind.__module__.startswith("numpy.")
        return (lambda mixed: setattr(bits, "state", kind(mixed).state)) if is_numpys else None
    if isinstance(generator, random.Random):
        return None if isinstance(generator, random.SystemRandom) else generator.seed
    if isinstance(generator, np.random.RandomState):
        return lambda mixed: generator.seed(mixed & _LOW)
    return lambda mixed: generator.manual_seed(mixed >> 1)  # type: ignore[attr-defined]  # torch's


# Separate the draws of transforms, of collate functions and of clips from those of the order.
TAG_TRANSFORM = 16
TAG_COLLATE = 17
TAG_CLIP = 18

# A transform with this attribute does not depend on the global generators: to seed them takes 8 us for each sample.
UNSEEDED = "streamer_unseeded"

Argument = TypeVar("Argument")
Made = TypeVar("Made")


def sample_seeds(seed: int, epoch: int, ordinals: npt.NDArray[np.int64]) -> list[int]:
    """Returns the global generators' seed for each sample: 64 well mixed bits."""
    found: list[int] = fold_each(fold(seed, epoch), ordinals).tolist()
    return found


def collate_seed(seed: int, epoch: int, first: int) -> int:
    """Returns the global generators' seed for the collate function of a batch; `first`: ordinal of its first sample."""
    return fold(seed, TAG_COLLATE, epoch, first)


def seed_globals(mixed: int) -> None:
    """Seeds `random`, `numpy.random` and, if imported, torch's CPU generator: 7 us, with torch 8 (2026-11-23)."""
    random.seed(mixed)
    np.random.seed(mixed & 0xFFFFFFFF)
    if torch := sys.modules.get("torch"):
        torch.random.default_generator.manual_seed(mixed)


class SeededCode:
    """Runs user code with its own generators seeded, and the global ones, if told so. Used by one thread."""

    def __init__(self, user_code: Sequence[object], *, seeds_globals: bool = True) -> None:
        self._own = OwnGenerators(user_code)
        self._seeds_globals = seeds_globals

    def run(self, mixed: int, function: Callable[[Argument], Made], argument: Argument) -> Made:
        """Runs the function once, after seeding with 64 bits."""
        if self._seeds_globals:
            seed_globals(mixed)
        self._own.seed(mixed)
        return function(argument)


class SampleDraws:
    """A generator per sample; its state is set instead of making a new one (0.4 against 16 us, 2026-11-20)."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._epoch = -1
        # Lists: numpy reads them item by item, and arrays take six times as long.
        self._key = [0, 0]

    @cached_property
    def _bits(self) -> np.random.Philox:
        return np.random.Philox(0)

    @cached_property
    def _blank(self) -> dict[str, object]:
        return {**self._bits.state, "state": {"counter": [0] * 4, "key": self._key}, "buffer": [0] * 4}

    @cached_property
    def _generator(self) -> np.random.Generator:
        return np.random.Generator(self._bits)

    def find_generator(self, epoch: int, ordinal: int) -> np.random.Generator:
        """Returns the generator of one sample in one epoch; valid until the next call."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._key[0] = fold(self._seed, TAG_TRANSFORM, epoch)
        self._key[1] = ordinal
        self._bits.state = self._blank  # type: ignore[assignment]  # lists instead of arrays
        return self._generator


@contextmanager
def keep_globals() -> Iterator[None]:
    """Restores the global generators afterwards: samples made in the trainer's process must not change their state."""
    python = random.getstate()
    numpy = np.random.get_state()
    torch = sys.modules.get("torch")
    state = torch.random.default_generator.get_state() if torch else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        if torch and state is not None:
            torch.random.default_generator.set_state(state)
