"""Credentials that expire: who waits for their renewal, and who does not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from streamer.errors import AccessDeniedError, StoreError
from streamer.store import failures
from streamer.store.credentials import key_ring
from streamer.store.credentials.key_ring import Issued, KeyRing

SECRET = "do-not-show"


def issued(name: str, seconds: float | None) -> Issued[str]:
    """Makes credentials that expire after so many seconds, or never."""
    return Issued(name, None if seconds is None else datetime.now(UTC) + timedelta(seconds=seconds))


Outcome = Issued[str] | Exception


class Finder:
    """Stands for an issuer of credentials: it gives what it is told in the order of the looks and counts them.

    An outcome beside an Event waits for it, as for an issuer that is slow. Nothing is signed or sent.
    """

    def __init__(self, *outcomes: Outcome | tuple[threading.Event, Outcome]) -> None:
        self._outcomes = list(outcomes)
        self.times = 0
        self.threads: set[str] = set()

    def __call__(self) -> Issued[str]:
        self.times += 1
        self.threads.add(threading.current_thread().name)
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, tuple):
            event, outcome = outcome
            assert event.wait(60)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


@pytest.fixture
def hanging() -> Iterator[threading.Event]:
    """An event that holds looks until the test is over."""
    event = threading.Event()
    yield event
    event.set()


async def ended(ring: KeyRing[str]) -> None:
    """Waits until no look is under way."""
    while ring._looks:
        await ring._news.wait()


def due(ring: KeyRing[str]) -> None:
    """Makes the next look due, as if its time had come."""
    ring._next = float("-inf")


async def test_one_look_for_all_who_wait() -> None:
    """All who wait for credentials share one look in a thread; credentials without an end are not looked for again."""
    find = Finder(issued("first", None))
    ring = KeyRing("s3://b", find)
    assert await asyncio.gather(*(ring.keys() for _ in range(20))) == ["first"] * 20
    assert await ring.keys() == "first"
    assert find.times == 1
    assert find.threads == {key_ring.THREAD_NAME}
    assert ring._next == float("inf")


async def test_a_look_that_fails_is_shared() -> None:
    """A failed look is one StoreError for all who wait, without the text of its cause; the next is a second later."""
    find = Finder(RuntimeError(f"token={SECRET}"), issued("first", None))
    ring = KeyRing("s3://b", find)
    found = await asyncio.gather(*(ring.keys() for _ in range(20)), return_exceptions=True)
    assert {type(error) for error in found} == {StoreError}
    assert find.times == 1
    assert "RuntimeError" in str(found[0])
    assert SECRET not in str(found[0]) + str(found[0].__cause__)  # type: ignore[union-attr]
    with pytest.raises(StoreError, match="the credentials cannot be obtained now"):
        await ring.keys()
    assert find.times == 1
    due(ring)
    assert await ring.keys() == "first"


async def test_nobody_waits_for_a_renewal(hanging: threading.Event) -> None:
    """Valid credentials serve at once while a slow renewal is under way."""
    find = Finder(issued("first", 600), (hanging, issued("second", 3600)))
    ring = KeyRing("s3://b", find)
    assert await ring.keys() == "first"
    due(ring)
    assert await ring.keys() == "first"
    assert ring._looks == 1
    hanging.set()
    await ended(ring)
    assert await ring.keys() == "second"


async def test_a_failed_renewal_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A failed renewal is warned about once, with the issuer's answer; the old credentials serve until a retry."""
    refusal = failures.refused_by_issuer("s3://b", "AssumeRole was answered with AccessDenied")
    ring = KeyRing("s3://b", Finder(issued("first", 600), refusal, refusal, issued("second", 3600)))
    assert await ring.keys() == "first"
    for _ in range(2):
        due(ring)
        assert await ring.keys() == "first"
        await ended(ring)
        assert ring._next < float("inf")
    (record,) = caplog.records
    assert "could not be renewed" in record.getMessage()
    assert "AssumeRole" in record.getMessage()
    assert "valid until" in record.getMessage()
    due(ring)
    await ring.keys()
    await ended(ring)
    assert await ring.keys() == "second"


async def test_ended_ones_are_waited_for_briefly(hanging: threading.Event) -> None:
    """Expired credentials are waited for a second or two, and then the error says that their issuer does not answer."""
    find = Finder(issued("first", 0.05), (hanging, issued("second", None)))
    ring = KeyRing("s3://b", find)
    assert await ring.keys() == "first"
    await asyncio.sleep(0.1)  # until they have ended, by the clock
    due(ring)
    with pytest.raises(StoreError, match=r"issuer has not answered for [12]\.\d s"):
        await ring.keys()
    hanging.set()
    assert await ring.keys() == "second"


async def test_refused_ones_are_looked_for_again() -> None:
    """Refused credentials are looked for again by later callers; a look begun before the refusal does not count."""
    before = threading.Event()
    find = Finder(issued("first", 600), (before, issued("old", 700)), issued("second", 600))
    ring = KeyRing("s3://b", find)
    assert await ring.keys() == "first"
    due(ring)
    assert await ring.keys() == "first"
    ring.refuse()
    before.set()
    assert await ring.keys() == "second"


async def test_a_hanging_look_gets_others_beside_it(hanging: threading.Event) -> None:
    """A look that hangs gets two others beside it; late credentials that expire sooner than the present are dropped."""
    find = Finder(issued("first", 600), *[(hanging, issued("late", 700))] * 3, issued("second", 3600))
    ring = KeyRing("s3://b", find)
    await ring.keys()
    for _ in range(5):
        due(ring)
        assert await ring.keys() == "first"
    assert (ring._looks, find.times) == (3, 4)
    hanging.set()
    await ended(ring)
    due(ring)
    await ring.keys()
    await ended(ring)
    ring._accept(issued("late", 700))
    assert await ring.keys() == "second"


async def test_who_is_cancelled_leaves_the_look_to_others(hanging: threading.Event) -> None:
    """A cancelled caller leaves the look to the others who wait for its credentials."""
    ring = KeyRing("s3://b", Finder((hanging, issued("first", None))))
    first, other = asyncio.create_task(ring.keys()), asyncio.create_task(ring.keys())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    hanging.set()
    assert await other == "first"


async def test_a_process_without_threads_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that can start no thread gets a StoreError, and credentials at the next look."""

    def start(thread: threading.Thread) -> None:
        """Stands for a system that has no thread left."""
        raise RuntimeError("can't start new thread")

    ring = KeyRing("s3://b", Finder(issued("first", None)))
    with monkeypatch.context() as patch:
        patch.setattr(key_ring.Thread, "start", start)
        with pytest.raises(StoreError, match="can't start new thread"):
            await ring.keys()
    due(ring)
    assert await ring.keys() == "first"


async def test_a_final_refusal_keeps_its_type() -> None:
    """A refusal that waiting does not change keeps its type, AccessDeniedError."""
    ring = KeyRing("s3://b", Finder(failures.no_credentials("s3://b")))
    with pytest.raises(AccessDeniedError, match="no credentials were found"):
        await ring.keys()
