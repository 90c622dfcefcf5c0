"""Refuses urls that lead to this machine, for a service whose clients choose the urls. No I/O.

That is a service without `[[datasets]]` in its configuration. Its clients act with its rights. Without this rule they
could read the service's files, including mounted secrets, and reach, through loopback and link-local addresses, other
containers of its pod and the credentials that clouds hand out to machines. `store/__init__.py` checks a root before it
opens the store, `store/curl/` each connection.
"""

from __future__ import annotations

from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from streamer.errors import AccessDeniedError
from streamer.store.addresses.hosts import host_of, is_of_azure, is_plain
from streamer.store.addresses.urls import shown
from streamer.store.places import join_endpoint
from streamer.store.root import StoreRoot

_OWN_NETWORKS = tuple(
    map(
        ip_network,
        (
            *("127.0.0.0/8", "::1/128"),
            *("0.0.0.0/8", "::/128"),  # Linux connects them to loopback
            *("169.254.0.0/16", "fe80::/10"),
            "fd00:ec2::/32",  # metadata of AWS by IPv6 (EC2 user guide, "Use the Instance Metadata Service")
            "fd20:ce::254/128",  # metadata of Google Cloud by IPv6 (Compute Engine docs, "Access VM metadata")
            "fd00:42::42/128",  # metadata of Scaleway by IPv6
            "192.0.0.192/32",  # metadata of Oracle Cloud's older machines
            "168.63.129.16/32",  # Azure's host (Azure docs, "What is IP address 168.63.129.16?")
            "100.100.100.200/32",  # metadata of Alibaba Cloud (ECS user guide, "Instance metadata")
        ),
    )
)
# Addresses of IPv6 that end in one of IPv4: NAT64 (RFC 6052, RFC 8215), IPv4-compatible ones (RFC 4291, 2.5.5.1), and
# SIIT (RFC 2765).
_TRANSLATED = tuple(map(ip_network, ("64:ff9b::/96", "64:ff9b:1::/48", "::/96", "::ffff:0:0:0/96")))
# A site chooses how many bytes of this network stand before the address of IPv4 (RFC 8215; RFC 6052, 2.2).
_OF_SITE = ip_network("64:ff9b:1::/48")
_PREFIX_BYTES = (6, 7, 8)


def is_own(host: str) -> bool:
    """Whether a host (address or name) is loopback, on this machine's link, or the server of its cloud's credentials.

    Names are not resolved: of these only localhost, and names below it, are.
    """
    with suppress(ValueError):
        found = _readings(ip_address(host.partition("%")[0]))
        return any(address in network for address in found for network in _OWN_NETWORKS)
    return host == "localhost" or host.endswith(".localhost")


def _readings(address: IPv4Address | IPv6Address) -> list[IPv4Address | IPv6Address]:
    """Returns the address, and the IPv4 addresses to which gateways and the kernel may translate it."""
    if isinstance(address, IPv4Address):
        return [address]
    others = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if any(address in network for network in _TRANSLATED):
        others += [IPv4Address(end)] if (end := int(address) & 0xFFFFFFFF) or address not in _OF_SITE else []
    if address in _OF_SITE:
        # Byte 8 is not part of the address of IPv4. One that begins with a zero byte is read with a longer prefix.
        behind = [address.packed[start:8] + address.packed[9:] for start in _PREFIX_BYTES]
        others += [IPv4Address(part[:4]) for part in behind if part[0]]
    return [address, *(other for other in others if other is not None)]


def refusal(url: str, what: str) -> AccessDeniedError:
    """Returns the error for a client that asks for something of this machine; `what` says what it is."""
    return AccessDeniedError(
        f"{shown(url)}: {what}; a service without [[datasets]] reads no local files, no loopback and no link-local "
        "addresses for its clients: name the url in [[datasets]] of its configuration",
        url=shown(url),
    )


def check(root: StoreRoot, *, is_curl: bool) -> None:
    """Refuses a root that leads to this machine, as far as that can be seen without resolving a name.

    Args:
        root: root of a url that a client names, with the options that it has sent.
        is_curl: whether libcurl reads the root. Only its stores check each connection.

    Raises:
        AccessDeniedError: the root or an option is a local file, only fsspec could read the root, the address is this
            machine's, it is not plain (`is_plain`) and could be read in different ways, or the client chooses an
            address whose connections would not be checked.
    """
    if root.scheme == "file":
        raise refusal(root.url, "it is a local file")
    if root.family is None or root.chosen.unknown:
        raise refusal(root.url, "only fsspec could read it")
    if "application_credentials" in root.chosen.config:
        raise refusal(root.url, "the token in storage_options is a file")
    if root.chosen.ca_file:
        raise refusal(root.url, "verify in storage_options is a file")
    place = find_client_place(root)
    if place is None:
        return
    if not is_plain(place) or is_own(host_of(place)):
        raise refusal(root.url, f"its address is {shown(place)}")
    if not is_curl:
        raise refusal(root.url, "libcurl does not read it, and its address is the client's choice")


def find_client_place(root: StoreRoot) -> str | None:
    """Returns the url to which a client's url and options lead; None if service or cloud decide on the host."""
    if root.is_web:
        return root.url
    endpoint = root.chosen.config.get("endpoint") or root.chosen.config.get("base_url")
    if endpoint is None or (root.family == "az" and is_of_azure(str(endpoint))):
        return None
    return join_endpoint(root.url, root.chosen, str(endpoint)) if root.family == "s3" else str(endpoint)
