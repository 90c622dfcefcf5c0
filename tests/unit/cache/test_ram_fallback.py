"""The folder in memory."""

from __future__ import annotations

from pathlib import Path

from streamer.cache.ram_fallback import FALLBACK_BYTES, RamFallback


def test_it_exists_only_while_it_is_needed(tmp_path: Path) -> None:
    """Named after the cache folder, private, bounded; a leftover of a killed engine is removed."""
    fallback = RamFallback("a1b2", tmp_path)
    assert not fallback.path.exists()
    assert fallback.limit_bytes == 0
    folder = fallback.open(None)
    assert fallback.open(None) is folder
    assert fallback.path.name.endswith("-a1b2")
    assert fallback.path.stat().st_mode & 0o777 == 0o700
    assert 0 < fallback.limit_bytes <= FALLBACK_BYTES
    RamFallback("a1b2", tmp_path).remove()
    assert list(tmp_path.iterdir()) == []
    fallback.remove()
    assert fallback.folder is None
