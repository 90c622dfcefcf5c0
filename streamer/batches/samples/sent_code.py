"""Prepares user code for being sent to worker processes, and warns if it has changed since it was sent.

`loader/epoch.py` compares the code between epochs. `send_main_by_value` is called before user code is pickled, by the
worker pool (`batches/workers/pool.py`), the forked workers' imports (`batches/workers/imports.py`), and the loader's
datasets and views.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager

import cloudpickle  # type: ignore[import-untyped]

from streamer.batches.samples.seeding import is_generator

# The name of the script's module in a process of mp.spawn, where it is imported again.
_SPAWNED_MAIN = "__mp_main__"


def send_main_by_value() -> None:
    """Makes cloudpickle pickle what the script defines by value, also in a spawned process.

    There the script's module is `__mp_main__`, which a worker does not have. cloudpickle does the same by itself for
    `__main__`. This changes a registry of cloudpickle in this process.
    """
    module = sys.modules.get(_SPAWNED_MAIN)
    if module is not None and _SPAWNED_MAIN not in cloudpickle.list_registry_pickle_by_value():
        cloudpickle.register_pickle_by_value(module)


logger = logging.getLogger(__name__)

# Code with more bytes or objects is not compared: 5,000 objects take 20 ms, a lambda 0.5 ms (2026-11-23).
MAX_BYTES = 1 << 20
MOST_OBJECTS = 5_000
_INSTALLED = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})


class SentCode:
    """Transforms, decoders and collate function as they were sent. Used by the trainer's thread.

    Args:
        contents: What was sent, of which a digest is made now.
    """

    def __init__(self, contents: object) -> None:
        self._contents = contents
        self._main_file = getattr(sys.modules["__main__"], "__file__", None)
        self._digest = _digest_code(contents)

    def __repr__(self) -> str:
        return f"SentCode(compared={self._digest is not None})"

    def compare(self) -> None:
        """Logs a warning, once, if the code, or a global or attribute that it uses, is no longer what was sent.

        Objects of installed libraries are not compared, nor is code that is too large or cannot be pickled.
        """
        if self._digest is None:
            return
        with _set_main_file(self._main_file):
            found = _digest_code(self._contents)
        if found in (self._digest, None):
            return
        self._digest = None
        logger.warning(
            "the transform, or a global or object that it uses, has changed since the worker processes received it: "
            "they go on with what they have. For the change to count, make a new loader, or start new workers with "
            "loader.load_state_dict(loader.state_dict())"
        )


@contextmanager
def _set_main_file(file: str | None) -> Iterator[None]:
    """Gives the script's module its `__file__` inside a `with` if it has none any more.

    Python removes it when the script has ended, before functions of atexit run, which may read a loader. cloudpickle
    pickles it with each function of the script.
    """
    main = vars(sys.modules["__main__"])
    is_gone = file is not None and "__file__" not in main
    if is_gone:
        main["__file__"] = file
    try:
        yield
    finally:
        if is_gone:
            del main["__file__"]


def _digest_code(contents: object) -> bytes | None:
    """Returns the digest of the pickled contents, or None if they are too large or cannot be pickled."""
    send_main_by_value()
    target = _Digest()
    try:
        _DigestPickler(target, protocol=5).dump(contents)
    except Exception:  # noqa: BLE001 - too large, or an object that has since opened a file or a connection
        return None
    return target.digest.digest()


class _Digest:
    """A file to pickle to, which keeps only a digest of what is written; a ValueError after `MAX_BYTES` bytes."""

    def __init__(self) -> None:
        self.digest = hashlib.blake2b(digest_size=16)
        self._left = MAX_BYTES

    def write(self, content: bytes) -> None:
        self._left -= len(content)
        if self._left < 0:
            raise ValueError("larger than what is compared")
        self.digest.update(content)


class _DigestPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles, but leaves out objects that change by being used: generators, and those of installed libraries."""

    _objects = 0

    def persistent_id(self, thing: object) -> object:
        """Returns the name of the type of an object that is left out, or None; a ValueError after `MOST_OBJECTS`."""
        self._objects += 1
        if self._objects > MOST_OBJECTS:
            raise ValueError("more objects than are compared")
        kind = type(thing)
        return kind.__qualname__ if is_generator(thing) or _is_installed(kind.__module__) else None


@functools.cache
def _is_installed(module: str) -> bool:
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return file.startswith(_INSTALLED) and module.partition(".")[0] != "streamer"
