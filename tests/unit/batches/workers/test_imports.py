"""Tests of the modules that user code needs, which the fork server imports before workers are forked."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest

from streamer.batches.workers.imports import find_modules

USER_CODE = '''
"""A user's module."""
import fractions


def inner(sample):
    import colorsys
    return colorsys, sample


class Transform:
    """With a method that imports, and one that defines a function that does."""

    def __call__(self, sample):
        from xml.dom import minidom
        return minidom, sample

    @staticmethod
    def other():
        def nested():
            import wave
            return wave
        return nested
'''


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Returns a module imported from a folder of its own.

    Its lazy imports have happened, as in a process that used it.
    """
    (tmp_path / "user_of_imports.py").write_text(USER_CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("colorsys", "xml.dom.minidom", "wave", "fractions"):
        importlib.import_module(name)
    yield importlib.import_module("user_of_imports")
    sys.modules.pop("user_of_imports")


def test_a_module_that_is_sent_by_value_is_not_imported(user_module) -> None:
    """A module that is sent by value is not imported, but the modules that it imports are."""
    assert "user_of_imports" in find_modules([user_module.inner])
    cloudpickle.register_pickle_by_value(user_module)
    try:
        found = find_modules([user_module.inner])
    finally:
        cloudpickle.unregister_pickle_by_value(user_module)
    assert "user_of_imports" not in found
    assert "colorsys" in found


def test_code_by_value_names_what_it_imports() -> None:
    """Code that is sent by value needs the modules of its globals and of imports in its body."""
    import wave

    def collate(samples: list[object]) -> object:
        import colorsys

        return colorsys, wave, samples

    collate.__module__ = "__main__"
    importlib.import_module("colorsys")
    assert {"colorsys", "wave"} <= set(find_modules([collate, None]))


def test_code_by_name_names_its_module_and_what_that_imports_late(user_module: object) -> None:
    """Code that is sent by name needs its module and the modules that this imports late.

    All functions, methods and nested functions of the module count.
    """
    found = find_modules([user_module.Transform()])  # type: ignore[attr-defined]
    assert {"user_of_imports", "colorsys", "xml.dom", "wave"} <= set(found)


def test_libraries_are_not_searched() -> None:
    """Modules that a library imports late are not needed: NumPy alone is for a function of NumPy."""
    import numpy as np

    importlib.import_module("numpy.testing")
    assert "numpy.testing" not in find_modules([np.mean])


def test_nothing_that_this_process_has_not_imported(user_module: object) -> None:
    """Modules that this process has not imported are not imported by the fork server."""
    sys.modules.pop("wave")
    assert "wave" not in find_modules([user_module.Transform])  # type: ignore[attr-defined]


def test_the_order_is_that_of_the_first_imports(user_module: object) -> None:
    """Modules are in the order of their first imports, for a library that must be imported before another."""
    found = find_modules([user_module.Transform(), user_module.inner])  # type: ignore[attr-defined]
    assert found == sorted(found, key=list(sys.modules).index)


def test_what_cannot_be_pickled_needs_nothing() -> None:
    """Code that cannot be pickled needs no modules here, as the error comes when it is sent."""
    import threading

    assert find_modules([threading.Lock()]) == []


def test_large_arrays_are_not_copied() -> None:
    """A transform with large arrays is searched for modules without a copy of them: below 16 MB for 128 MB."""
    import tracemalloc

    import numpy as np

    array = np.zeros(1 << 27, np.uint8)
    tracemalloc.start()
    find_modules([{"mean": array}])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 24
