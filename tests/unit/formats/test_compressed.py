"""Unpacking on a Python that lacks modules."""

from __future__ import annotations

import bz2
import lzma
import sys

import pytest

from streamer.errors import ConfigError
from streamer.formats.compressed import check_library, decompress


@pytest.mark.parametrize(
    ("packing", "module", "content"), [("xz", "lzma", lzma.compress(b"x")), ("bz2", "bz2", bz2.compress(b"x"))]
)
def test_a_missing_module_is_named(monkeypatch: pytest.MonkeyPatch, packing: str, module: str, content: bytes) -> None:
    """A Python that was built without it reads everything else; every engine ended over the import."""
    assert bytes(decompress(packing, memoryview(content), 10)) == b"x"
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=f"module {module}, without which .* was built"):
        decompress(packing, memoryview(content), 10)


def test_a_missing_module_is_named_before_the_first_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Formats of compressed shards ask when they are indexed."""
    check_library("bz2")
    monkeypatch.setitem(sys.modules, "bz2", None)
    with pytest.raises(ConfigError, match="module bz2"):
        check_library("bz2")
