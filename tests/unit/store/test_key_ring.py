"""Keys that expire: who waits for them, and who does not."""

from __future__ import annotations

import asyncio
import threading

from botocore.exceptions import CredentialRetrievalError

from streamer.errors import StoreError
from streamer.store import key_ring
from streamer.store.boto_keys import Keys
from streamer.store.key_ring import KeyRing

SECRET = "do-not-show"


class _Finder:
    """Finds what it is told, and counts."""

    def __init__(self, *outcomes: Keys | Exception) -> None:
        self._outcomes = list(outcomes)
        self.times = 0
        self.threads: set[int] = set()
        self.may = threading.Event()

    def __call__(self) -> Keys:
        self.times += 1
        self.threads.add(threading.get_ident())
        assert self.may.wait(60)
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


FIRST, SECOND = Keys("a", "s"), Keys("b", "s")


async def _all(ring: KeyRing, find: _Finder, count: int) -> list[Keys | BaseException]:
    """What so many get who come at the same time."""
    asking = [asyncio.create_task(ring.keys()) for _ in range(count)]
    await asyncio.sleep(0)
    find.may.set()
    return await asyncio.gather(*asking, return_exceptions=True)


async def test_one_look_for_all_who_wait() -> None:
    """In a thread that is not the loop's, and none within the minute."""
    find = _Finder(FIRST)
    ring = KeyRing(find)
    assert await _all(ring, find, 20) == [FIRST] * 20
    assert await ring.keys() is FIRST
    assert find.times == 1
    assert threading.get_ident() not in find.threads


async def test_a_look_that_fails_is_shared() -> None:
    """An error of ours that names the kind and not the text; the next look is after a second, not in the minute."""
    find = _Finder(CredentialRetrievalError(provider="process", error_msg=f"token={SECRET}"), FIRST)
    ring = KeyRing(find)
    found = await _all(ring, find, 20)
    assert {type(error) for error in found} == {StoreError}
    assert find.times == 1
    assert "CredentialRetrievalError" in str(found[0])
    assert SECRET not in str(found[0]) + str(found[0].__cause__)  # type: ignore[union-attr]
    ring._next -= key_ring._KEYS_AGAIN_SECONDS
    assert await ring.keys() is FIRST


async def test_keys_serve_on_where_no_new_ones_are_found() -> None:
    """The store will say when they have ended."""
    find = _Finder(FIRST, RuntimeError("down"), SECOND)
    find.may.set()
    ring = KeyRing(find)
    assert await ring.keys() is FIRST
    ring._next -= key_ring._KEYS_SECONDS
    assert await ring.keys() is FIRST
    assert find.times == 2
    ring._next -= key_ring._KEYS_AGAIN_SECONDS
    assert await ring.keys() is SECOND


async def test_who_is_cancelled_leaves_the_look_to_others() -> None:
    """Whoever waits gets keys."""
    find = _Finder(FIRST, SECOND)
    ring = KeyRing(find)
    first, other = asyncio.create_task(ring.keys()), asyncio.create_task(ring.keys())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    find.may.set()
    assert await other in (FIRST, SECOND)
