"""Keys that expire, looked up in a thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from streamer.store import boto_keys, failures
from streamer.store.boto_keys import Keys

# The time between two look-ups of keys that expire; boto renews them long before.
_KEYS_SECONDS = 60.0
# The same after a look-up that failed, for a metadata service that is not up yet.
_KEYS_AGAIN_SECONDS = 1.0


class KeyRing:
    """The keys of now. Lives on one event loop.

    Args:
        find: returns them, perhaps after asking a metadata service; runs in a thread, at most once a minute.
    """

    def __init__(self, find: Callable[[], Keys]) -> None:
        self._find = find
        self._keys: Keys | None = None
        self._failure: Exception | None = None
        self._next = float("-inf")
        self._lock = asyncio.Lock()

    async def keys(self) -> Keys:
        """The keys; once a minute a request waits until they were looked up again.

        Where that fails, the last ones are used: if they have expired, the store answers so.

        Raises:
            StoreError: there were never any; all requests that waited for one look-up share its failure.
        """
        if time.monotonic() >= self._next:
            async with self._lock:
                if time.monotonic() >= self._next:
                    await self._look()
        if self._keys is None:
            assert self._failure is not None, "looked for"
            raise boto_keys.unobtainable(self._failure) from failures.redacted(self._failure)
        return self._keys

    async def _look(self) -> None:
        seconds = _KEYS_SECONDS
        try:
            self._keys = await asyncio.to_thread(self._find)
        except Exception as error:  # noqa: BLE001 - the edge: whatever boto raises becomes ours
            self._failure, seconds = error, _KEYS_AGAIN_SECONDS
        self._next = time.monotonic() + seconds
