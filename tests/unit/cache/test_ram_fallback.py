"""The folder in memory."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from streamer.cache import ram_fallback
from streamer.cache.folder import Folder, Permissions, open_folder
from streamer.cache.ram_fallback import FALLBACK_BYTES, RamFallback

CACHE = Folder(Path("/cache"), "a1b2", Permissions())


def test_it_exists_only_while_it_is_needed(tmp_path: Path) -> None:
    """Named after the cache folder, private, bounded; a leftover of a killed engine is removed."""
    fallback = RamFallback(CACHE, None, tmp_path)
    assert not fallback.path.exists()
    folder = fallback.open()
    assert fallback.open() is folder
    assert fallback.path.name.endswith("-a1b2")
    assert fallback.path.stat().st_mode & 0o777 == 0o700
    assert 0 < fallback.limit_bytes <= FALLBACK_BYTES
    RamFallback(CACHE, None, tmp_path).remove()
    assert list(tmp_path.iterdir()) == []
    fallback.remove()
    assert fallback.folder is None
    assert RamFallback(CACHE, None, tmp_path / "none").limit_bytes == 0


def test_two_threads_open_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening empties it: the second thread would take the file that the first one writes."""
    opened = list[Path]()
    both = threading.Barrier(2)

    def slowly(path: Path, group: str | None) -> Folder:
        opened.append(path)
        # Whoever is here waits for the other one, who must not come.
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.2)
        return open_folder(path, group)

    monkeypatch.setattr(ram_fallback, "open_folder", slowly)
    fallback = RamFallback(CACHE, None, tmp_path)
    with ThreadPoolExecutor(2) as pool:
        first, second = (pool.submit(fallback.open), pool.submit(fallback.open))
    assert first.result() is second.result()
    assert len(opened) == 1
    fallback.remove()
