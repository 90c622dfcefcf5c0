"""Decompression where the Python lacks lzma or bz2; the missing module is simulated in `sys.modules`."""

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
    """Decompression raises ConfigError that names the module where Python was built without lzma or bz2."""
    assert bytes(decompress(packing, memoryview(content), 10)) == b"x"
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=f"module {module}, without which .* was built"):
        decompress(packing, memoryview(content), 10)


def test_a_missing_module_is_named_before_the_first_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """`check_library` raises ConfigError for a missing module, so that formats can ask while they index."""
    check_library("bz2")
    monkeypatch.setitem(sys.modules, "bz2", None)
    with pytest.raises(ConfigError, match="module bz2"):
        check_library("bz2")
