"""Work on files off the loop: locks on keys, and what threads do."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from streamer.base import linux
from streamer.base.system_limits import is_shortage


class KeyLocks:
    """Locks on keys: one holder at a time for each, its writer or its unlinker. Lives on one loop."""

    def __init__(self) -> None:
        self._busy: dict[bytes, asyncio.Event] = {}

    def __repr__(self) -> str:
        return f"KeyLocks({len(self._busy)} keys busy)"

    @contextlib.asynccontextmanager
    async def hold(self, keys: Sequence[bytes]) -> AsyncIterator[asyncio.Event]:
        """Waits for all keys, then holds all of them; yields the event that is set when they are free again."""
        while others := [self._busy[key] for key in keys if key in self._busy]:
            await others[0].wait()
        done = asyncio.Event()
        self._busy.update(dict.fromkeys(keys, done))
        try:
            yield done
        finally:
            for key in set(keys):
                del self._busy[key]
            done.set()


def unlink_all(paths: Mapping[bytes, Path], failed: dict[bytes, OSError]) -> None:
    """Unlinks files and collects those that failed."""
    for key, path in paths.items():
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            failed[key] = error


def advise(path: Path, advice: linux.Advice) -> None:
    """Advises the kernel about a file's pages; does nothing if it cannot be opened: it is evicted, or too many are."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if isinstance(error, FileNotFoundError) or is_shortage(error):
            return
        raise
    try:
        linux.advise(descriptor, advice)
    finally:
        os.close(descriptor)
