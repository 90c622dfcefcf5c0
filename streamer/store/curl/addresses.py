"""Decides which address a request goes to: each connection another one of a store's name, or where it was redirected.

At S3 a name has up to eight addresses. libcurl keeps their order for a minute, so that every connection, retry and
duplicate went to the first: when that one was slow by 3 s, there were 266 reads in 6 s instead of 3,359 (2026-11-24).
Without that minute libcurl 8.23 loses one of fifty look-ups in quick succession, and times out after 5 s.

A hub of data sets answers each read with a signed address: one request to it per object, instead of one per range of 8
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

# libcurl keeps them as long.
_KEPT_SECONDS = 60.0
# The first request waits at most this long for them; if the resolver is silent, libcurl resolves the name.
_WAIT_SECONDS = 0.25
_PORTS = {"http": 80, "https": 443}


class Names:
    """The addresses of one url's host. Lives on one event loop."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or _PORTS.get(parts.scheme, 0)
        self._addresses: list[str] = []
        # Behind a proxy names may not resolve, and the proxy opens the connections.
        unused = is_ip(self._host) or {f"{parts.scheme}_proxy", "all_proxy"} & {
            name.lower() for name, value in os.environ.items() if value
        }
        self._next = float("inf") if unused else float("-inf")
        self._used = 0
        self._news = asyncio.Event()

    def __repr__(self) -> str:
        return f"Names({self._host!r}, {self._addresses})"

    async def ready(self) -> None:
        """Waits for the first look-up, up to a limit."""
        if self._look_if_due():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), _WAIT_SECONDS)

    def lines(self) -> list[str]:
        """Addresses for CURLOPT_RESOLVE, each time beginning with another one; empty if libcurl resolves the name."""
        self._look_if_due()
        if len(self._addresses) < 2:
            return []
        self._used += 1
        at = self._used % len(self._addresses)
        order = ",".join(self._addresses[at:] + self._addresses[:at])
        return [f"+{self._host}:{self._port}:{order}"]

    def _look_if_due(self) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + _KEPT_SECONDS
        # It is not one of the loop's own threads, whose end would be waited for.
        loop = asyncio.get_running_loop()
        Thread(target=self._look, args=(loop,), name="streamer-names", daemon=True).start()
        return True

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
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

# A range takes time, and clocks differ.
_SPARE_SECONDS = 60.0
_MOST = 10_000


class Targets:
    """Addresses by the urls of objects."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, float]] = {}

    def __repr__(self) -> str:
        return f"Targets({len(self._known)} known)"

    def find_target(self, url: str) -> str:
        """Returns the address to read from; empty if none is known or it has expired."""
        address, until = self._known.get(url, ("", 0.0))
        return address if time.time() < until else ""

    def keep(self, url: str, address: str) -> None:
        """Keeps an address that says how long it is valid."""
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[url] = (address, read_expiry(address) - _SPARE_SECONDS)

    def drop(self, url: str) -> None:
        """Drops the address after a refusal."""
        self._known.pop(url, None)


def read_expiry(address: str) -> float:
    """Returns the end of a signed address in seconds since 1970; 0 if it names none.

    Source: AWS, "Use signed URLs" (CloudFront: Expires) and "Authenticating Requests: Using Query Parameters" (S3).
    """
    asked = dict(parse_qsl(urlsplit(address).query))
    with suppress(ValueError, KeyError):
        if "Expires" in asked:
            return float(asked["Expires"])
        begin = datetime.strptime(asked["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        return begin.timestamp() + float(asked["X-Amz-Expires"])
    return 0.0
