"""Addresses to which a web server redirected the reads of an object, for as long as they say that they are valid.

A hub of data sets answers each read with a signed address: one request to it per object, instead of one per range of 8
MiB, stays below its limit of requests per five minutes (Hugging Face, "Hub rate limits").
"""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime
from urllib.parse import parse_qsl, urlsplit

# A range takes time, and clocks differ.
_SPARE_SECONDS = 60.0
_MOST = 10_000


class Targets:
    """Addresses by the urls of objects."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, float]] = {}

    def __repr__(self) -> str:
        return f"Targets({len(self._known)} known)"

    def of(self, url: str) -> str:
        """The address to read from; empty if none is known or it has expired."""
        address, until = self._known.get(url, ("", 0.0))
        return address if time.time() < until else ""

    def keep(self, url: str, address: str) -> None:
        """Keeps an address that says how long it is valid."""
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[url] = (address, held_until(address) - _SPARE_SECONDS)

    def drop(self, url: str) -> None:
        """Drops the address after a refusal."""
        self._known.pop(url, None)


def held_until(address: str) -> float:
    """End of a signed address in seconds since 1970; 0 if it names none.

    Source: AWS, "Use signed URLs" (CloudFront: Expires) and "Authenticating Requests: Using Query Parameters" (S3).
    """
    asked = dict(parse_qsl(urlsplit(address).query))
    with suppress(ValueError, KeyError):
        if "Expires" in asked:
            return float(asked["Expires"])
        begin = datetime.strptime(asked["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        return begin.timestamp() + float(asked["X-Amz-Expires"])
    return 0.0
