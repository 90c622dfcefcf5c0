"""Which redirects are followed; pure.

A web server may send its clients anywhere: anyone's data, and no keys. An S3 endpoint that is a cluster of caches sends
them to its own servers (AIStore, Alluxio); one that is no such cluster sends them to another region, where a request
needs another signature.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

import msgspec


class Redirects(msgspec.Struct, frozen=True):
    """What is followed.

    Attributes:
        most: one after the other.
        hosts: names, patterns of names (*.cluster.local), and networks (10.0.0.0/8); None: all.
    """

    most: int
    hosts: tuple[str, ...] | None

    def follows(self, address: str) -> bool:
        """Whether a redirect to this address is followed."""
        return self.hosts is None or any(_is_in(host_of(address), one) for one in self.hosts)


# As obstore's.
OF_WEB_SERVERS = Redirects(10, None)
# From one of a cluster's servers to the one that has the object, and once more while it changes.
MOST_IN_CLUSTER = 3


def host_of(address: str) -> str:
    """Of a url, in lower case."""
    return urlsplit(address).hostname or ""


def unusable(hosts: Sequence[object]) -> str | None:
    """The first of the hosts that is neither name nor network."""
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
