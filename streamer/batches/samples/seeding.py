"""Seeds random numbers by seed, epoch and sample only: never by the worker, the batch or the time.

The maker of samples (`batches/samples/maker.py`) and the maker of batches (`batches/workers/batch_maker.py`) use it.
The loader warns of generators that cannot be seeded (`loader/options/loader_options.py`), and keeps the global ones
where the trainer makes batches (`loader/feed/supply.py`).

Transforms that take `rng` get a generator. The global generators, and those that user code holds, are seeded before
each call of user code, unless worker threads share them. Every worker has a copy of a generator that user code holds:
without a seed, all workers would draw the same numbers, and which sample gets which of them would depend on the time.
The user's objects are looked at once, before the first sample; nothing is called.
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

# A function that seeds one generator, with an integer of 64 bits.
Seed = Callable[[int], object]

_LOW = 0xFFFFFFFF
# Depth to which objects are searched: a function, a composition, its list, a step, its generator.
_LEVELS = 5
# Number of objects that are searched, in all.
_MOST_OBJECTS = 500
# Number of parts of one object that are searched.
_MOST_ITEMS = 100
# Types whose objects hold no generators.
_PLAIN = (type(None), bool, int, float, complex, str, bytes, np.ndarray, np.generic, type, types.ModuleType)


class OwnGenerators:
    """Finds the random number generators that user code holds, and seeds them. Used by one thread.

    Args:
        user_code: transforms, decoders and collate functions, which are searched now.

    Attributes:
        found: functions that seed the generators, one for each.
        refused: types of the generators, and methods ("type.method") of other objects, that take no plain seed.
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
        """Seeds all found generators, each with a seed of its own that is derived from `mixed`, 64 bits."""
        for number, seed in enumerate(self.found):
            seed(fold(mixed, number))

    def _add(self, name: str, seed: Seed | None) -> None:
        if seed is None:
            self.refused.append(name)
        else:
            self.found.append(seed)


def warn_of_generators(user_code: Iterable[object], *, shared: bool) -> None:
    """Logs a warning if user code holds generators that are not seeded for each sample.

    Args:
        user_code: Transforms, decoders and collate functions.
        shared: whether worker threads share the user code, so that none of its generators can be seeded.
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
    """Whether an object is a random number generator of Python, numpy or torch."""
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

    It leaves out the global generators, which `seed_globals` seeds, and the parts of an object that has a method to
    seed it.
    """
    torch = sys.modules.get("torch")
    shared = [random._inst, np.random.mtrand._rand, *([torch.default_generator] if torch else [])]
    # The objects are kept until the end, so that no other object gets the same id.
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
    """Yields the parts of an object: attributes, items, arguments, closures, and the globals that a function names."""
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
    """Returns the name of the method that seeds a transform of albumentations, MONAI or others, or None without one."""
    names = ("set_random_state", "set_random_seed")
    return next((name for name in names if callable(getattr(type(thing), name, None))), None)


def _make_method_seeder(thing: object, method: str) -> Seed | None:
    """Returns a function that seeds an object by its method, or None if the method needs more than a seed."""
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
    """Returns a function that seeds a generator in place, or None if it cannot be seeded."""
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


# Numbers that keep the draws of transforms, of collate functions and of clips apart from those of the order.
TAG_TRANSFORM = 16
TAG_COLLATE = 17
TAG_CLIP = 18

# The attribute of a transform for which the global generators are not seeded. To seed them takes 8 us for each sample.
UNSEEDED = "streamer_unseeded"

Argument = TypeVar("Argument")
Made = TypeVar("Made")


def sample_seeds(seed: int, epoch: int, ordinals: npt.NDArray[np.int64]) -> list[int]:
    """Returns the seed of each sample for the generators that user code uses: integers of 64 well mixed bits."""
    found: list[int] = fold_each(fold(seed, epoch), ordinals).tolist()
    return found


def collate_seed(seed: int, epoch: int, first: int) -> int:
    """Returns the seed for the collate function of a batch, whose first sample has the code `first`: 64 bits."""
    return fold(seed, TAG_COLLATE, epoch, first)


def seed_globals(mixed: int) -> None:
    """Seeds the global generators of `random` and `numpy.random`, and torch's of the CPU if torch is imported.

    It takes 7 us, and 8 with torch (2026-11-23). `mixed` has 64 bits.
    """
    random.seed(mixed)
    np.random.seed(mixed & 0xFFFFFFFF)
    if torch := sys.modules.get("torch"):
        torch.random.default_generator.manual_seed(mixed)


class SeededCode:
    """Runs user code after seeding the generators that it holds, and the global ones. Used by one thread.

    Args:
        user_code: transforms, decoders and collate functions, whose generators are looked for now.
        seeds_globals: whether the global generators are seeded as well.
    """

    def __init__(self, user_code: Sequence[object], *, seeds_globals: bool = True) -> None:
        self._own = OwnGenerators(user_code)
        self._seeds_globals = seeds_globals

    def run(self, mixed: int, function: Callable[[Argument], Made], argument: Argument) -> Made:
        """Seeds the generators with `mixed`, 64 bits, then calls the function with the argument; returns its result."""
        if self._seeds_globals:
            seed_globals(mixed)
        self._own.seed(mixed)
        return function(argument)


class SampleDraws:
    """Gives each sample a random number generator of numpy, which depends on seed, epoch and ordinal only.

    It is one generator, whose state is set: that takes 0.4 us, and a new one 16 us (2026-11-20).
    """

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
        """Returns the generator of one sample in one epoch, or run of `SampleLocation`. Valid until the next call."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._key[0] = fold(self._seed, TAG_TRANSFORM, epoch)
        self._key[1] = ordinal
        self._bits.state = self._blank  # type: ignore[assignment]  # lists instead of arrays
        return self._generator


@contextmanager
def keep_globals() -> Iterator[None]:
    """Restores the state of the global generators after a `with` block that makes samples in the trainer's process."""
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
