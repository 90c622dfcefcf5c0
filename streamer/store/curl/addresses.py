"""Spreads connections over the addresses of a store's name, and remembers where reads of an object were redirected.

`store/curl/store.py` uses both. At S3 a name has up to eight addresses. libcurl keeps their order for a minute, so that
every connection, retry and duplicate went to the first one: when that was slow by 3 s, there were 266 reads in 6 s
instead of 3,359 (2026-11-24). If libcurl 8.23 keeps nothing, it loses one of fifty look-ups in quick succession, and
times out after 5 s.

A hub of data sets redirects each read to a signed address. To ask it once for each object, and not for each range of 8
MiB, stays below its limit of requests per five minutes (Hugging Face, "Hub rate limits").
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from contextlib import suppress
from datetime import UTC, datetime
from threading import Thread
from urllib.parse import parse_qsl, urlsplit

from streamer.store.places import is_ip

# The addresses of a name are looked up again after this time, for which libcurl keeps them, too.
_KEPT_SECONDS = 60.0
# The first request waits at most this long for the addresses. After that libcurl resolves the name.
_WAIT_SECONDS = 0.25
_PORTS = {"http": 80, "https": 443}


class Names:
    """Looks up the addresses of one url's host, in a thread, again every minute. Lives on one event loop.

    Nothing is looked up if the host is an IP address or the environment names a proxy.

    Args:
        url: any url with the host.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or _PORTS.get(parts.scheme, 0)
        self._addresses: list[str] = []
        # A proxy makes the connections itself, and names may not be known here.
        unused = is_ip(self._host) or {f"{parts.scheme}_proxy", "all_proxy"} & {
            name.lower() for name, value in os.environ.items() if value
        }
        self._next = float("inf") if unused else float("-inf")
        self._used = 0
        self._news = asyncio.Event()

    def __repr__(self) -> str:
        return f"Names({self._host!r}, {self._addresses})"

    async def ready(self) -> None:
        """Starts the first look-up, and waits for it, at most 0.25 s."""
        if self._look_if_due():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), _WAIT_SECONDS)

    def lines(self) -> list[str]:
        """Returns the value of CURLOPT_RESOLVE for a new connection: all addresses, in another order at each call.

        The list is empty if the name has fewer than two known addresses: libcurl then resolves it. May start a look-up.
        """
        self._look_if_due()
        if len(self._addresses) < 2:
            return []
        self._used += 1
        at = self._used % len(self._addresses)
        order = ",".join(self._addresses[at:] + self._addresses[:at])
        return [f"+{self._host}:{self._port}:{order}"]

    def _look_if_due(self) -> bool:
        """Starts a look-up if the last one is a minute ago; returns whether it did."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + _KEPT_SECONDS
        # The thread is not one of the loop's pool, for whose end the process would wait.
        loop = asyncio.get_running_loop()
        Thread(target=self._look, args=(loop,), name="streamer-names", daemon=True).start()
        return True

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Looks the name up, in a thread, and hands the addresses to the loop, an empty list after a failure."""
        found: list[str] = []
        with suppress(OSError, UnicodeError):
            for family, *_, where in socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM):
                found.append(f"[{where[0]}]" if family == socket.AF_INET6 else str(where[0]))
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._keep_addresses, found)

    def _keep_addresses(self, addresses: list[str]) -> None:
        self._addresses = addresses or self._addresses
        self._news.set()


# ---------------------------------------------------------------- redirects that are kept

# A signed address is not used in the last seconds before it expires: a read takes time, and clocks differ.
_SPARE_SECONDS = 60.0
# When this many are kept, all are forgotten.
_MOST = 10_000


class Targets:
    """Remembers for objects of a web server the signed address that a read was redirected to, until it expires."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, float]] = {}

    def __repr__(self) -> str:
        return f"Targets({len(self._known)} known)"

    def find_target(self, url: str) -> str:
        """Returns the address from which an object is read; "" if none is known or it is about to expire."""
        address, until = self._known.get(url, ("", 0.0))
        return address if time.time() < until else ""

    def keep(self, url: str, address: str) -> None:
        """Keeps an address for the url of an object; one that does not say when it expires is never found."""
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[url] = (address, read_expiry(address) - _SPARE_SECONDS)

    def drop(self, url: str) -> None:
        """Forgets the address for the url of an object, if there is one."""
        self._known.pop(url, None)


def read_expiry(address: str) -> float:
    """Returns when a signed address expires, in seconds since 1970; 0 if it does not say so.

    Source: AWS, "Use signed URLs" (CloudFront: Expires) and "Authenticating Requests: Using Query Parameters" (S3).
    """
    asked = dict(parse_qsl(urlsplit(address).query))
    with suppress(ValueError, KeyError):
        if "Expires" in asked:
            return float(asked["Expires"])
        begin = datetime.strptime(asked["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        return begin.timestamp() + float(asked["X-Amz-Expires"])
    return 0.0
