"""How libcurl reaches a root: addresses, headers, trust, keys."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from botocore.exceptions import CredentialRetrievalError

from streamer.errors import ConfigError, StoreError
from streamer.store.boto_keys import Keys
from streamer.store.curl import access as curl_access
from streamer.store.curl.access import Access, KeyRing, make_access, trusted
from streamer.store.options import translate
from streamer.store.urls import split

SECRET = "do-not-show"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://h/a b", "http://h/a%20b"),
        ("http://h/a%20b", "http://h/a%20b"),
        ("http://h/100%.bin", "http://h/100%25.bin"),
        ("http://h/a%zz", "http://h/a%25zz"),
        ("http://h/a#b", "http://h/a%23b"),
        ("http://h/\u00fc?x=1&y=a%2Fb", "http://h/%C3%BC?x=1&y=a%2Fb"),
        ("http://[::1]:80/a[1]", "http://[::1]:80/a[1]"),
    ],
)
def test_a_web_address_keeps_what_is_escaped(url: str, address: str) -> None:
    """And escapes the rest; a # is part of the name, as it is where obstore finds the object."""
    assert Access().address(url) == address


def test_the_address_of_a_key() -> None:
    """Every sign but those that SigV4 leaves alone is escaped."""
    assert Access(base="http://h/b/").address("a/b~c+d%20e?") == "http://h/b/a/b~c%2Bd%2520e%3F"


def test_headers_become_lines() -> None:
    """An empty one in libcurl's own spelling; one that would be two lines is refused, without its value."""
    address = split("http://h/x")
    access = make_access(address, translate(address, {"headers": {"A": "b c", "Empty": ""}}))
    assert access is not None
    assert access.headers == ("A: b c", "Empty;")
    for value in (f"{SECRET}\r\nEvil: 1", f"{SECRET}\u20ac"):
        with pytest.raises(ConfigError, match="'A'") as caught:
            make_access(address, translate(address, {"headers": {"A": value}}))
        assert SECRET not in str(caught.value)


def test_trusted_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SSL_CERT_FILE and SSL_CERT_DIR go first; a file that is not there is no file."""
    (tmp_path / "ca.pem").touch()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    assert trusted() == (str(tmp_path / "ca.pem"), str(tmp_path))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    assert trusted()[0] in (None, *curl_access._BUNDLES)


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
    ring._next -= curl_access._KEYS_AGAIN_SECONDS
    assert await ring.keys() is FIRST


async def test_keys_serve_on_where_no_new_ones_are_found() -> None:
    """The store will say when they have ended."""
    find = _Finder(FIRST, RuntimeError("down"), SECOND)
    find.may.set()
    ring = KeyRing(find)
    assert await ring.keys() is FIRST
    ring._next -= curl_access._KEYS_SECONDS
    assert await ring.keys() is FIRST
    assert find.times == 2
    ring._next -= curl_access._KEYS_AGAIN_SECONDS
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
