"""Decides which redirects are followed. Pure.

A web server may send its clients anywhere: it serves anyone's data, and gets no keys. An S3 endpoint that is a cluster
of caches (AIStore, Alluxio) sends them to its own servers; any other sends them to another region, where a request
needs another signature.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

import msgspec


class Redirects(msgspec.Struct, frozen=True):
    """The redirects to follow.

    Attributes:
        hosts: names, patterns of names (*.cluster.local), and networks (10.0.0.0/8); None: all hosts.
    """

    most: int
    hosts: tuple[str, ...] | None

    def follows(self, address: str) -> bool:
        """Whether a redirect to this address is followed."""
        return self.hosts is None or any(_is_in(host_of(address), one) for one in self.hosts)


# obstore has the same limit.
OF_WEB_SERVERS = Redirects(10, None)
# From one server of a cluster to the one that has the object, and once more while the cluster changes.
MOST_IN_CLUSTER = 3
_WITHHELD = frozenset({"authorization", "cookie", "cookie2", "proxy-authorization", "www-authenticate"})
_HARMLESS = frozenset({"user-agent", "accept", "accept-language", "accept-encoding"})


def own_headers(names: Iterable[str]) -> list[str]:
    """The headers that obstore would send to every host of a redirect; it withholds those that log in."""
    return [f"headers.{name}" for name in names if name.lower() not in _WITHHELD | _HARMLESS]


def host_of(address: str) -> str:
    """Host of a url, in lower case."""
    return urlsplit(address).hostname or ""


def unusable(hosts: Sequence[object]) -> str | None:
    """The first of the hosts that is neither a name nor a network."""
    return next((repr(one) for one in hosts if not isinstance(one, str) or not _is_host(one)), None)


def _is_host(text: str) -> bool:
    if "/" not in text:
        return text != ""
    try:
        ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def _is_in(host: str, allowed: str) -> bool:
    if "/" not in allowed:
        return fnmatchcase(host, allowed.lower())
    try:
        return ip_address(host) in ip_network(allowed, strict=False)
    except ValueError:  # a name
        return False
