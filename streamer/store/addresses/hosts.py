"""Decides whether names and addresses are those of a cloud, by their grammar, and which redirects are followed. Pure.

Account, container, bucket and region become parts of a host name or of a path. A sign that ends a host name in a url
(# / @ : ?) would lead the request, and the credentials with it, to another host: so names are compared with the grammar
that their clouds publish, always, and the address that results is taken apart again.

A web server may send its clients anywhere: it serves anyone's data, and gets no keys. An S3 endpoint that is a cluster
of caches (AIStore, Alluxio) sends them to its own servers; any other sends them to another region, where a request
needs another signature.

Sources: AWS, "General purpose bucket naming rules"; Google, "About Cloud Storage buckets"; Microsoft, "Naming rules and
restrictions for Azure resources", "Compare Azure Government and global Azure", "OneLake access and APIs".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

import msgspec

from streamer.errors import ConfigError
from streamer.store.addresses.urls import shown

# Older buckets, and those of other servers, have upper case and underscores; Ceph has tenants before a colon.
_BUCKET = re.compile(r"(?:[A-Za-z0-9_-]{1,64}:)?[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}", re.ASCII)
_ACCESS_POINT = re.compile(r"arn:aws[a-z-]*:s3[a-z-]*:[a-z0-9-]*:[0-9]*:[A-Za-z0-9:/._-]{1,255}", re.ASCII)
_GOOGLE_BUCKET = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,221}", re.ASCII)
# OneLake has workspaces in their place.
_CONTAINER = re.compile(r"[$A-Za-z0-9_-][$A-Za-z0-9._-]{0,254}", re.ASCII)
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}(?:-secondary)?", re.ASCII)
_TENANT = re.compile(r"[A-Za-z0-9.-]{1,253}", re.ASCII)
# This is the form of AWS; other servers have other names, which are in signatures only.
_REGION = re.compile(r"[a-z0-9-]{1,40}", re.ASCII)
_ANY_REGION = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
_HOST = re.compile(r"[a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63})*", re.ASCII)
_NETLOC = re.compile(r"(?:[A-Za-z0-9_.-]+|\[[0-9a-fA-F:.]+\])(?::[0-9]{1,5})?", re.ASCII)

_OF_AWS = (
    *(".amazonaws.com", ".amazonaws.com.cn", ".amazonaws.eu", ".api.aws", ".api.amazonwebservices.com.cn"),
    *(".c2s.ic.gov", ".sc2s.sgov.gov", ".csp.hci.ic.gov", ".cloud.adc-e.uk"),
)
_OF_AZURE = (
    *(".core.windows.net", ".core.usgovcloudapi.net", ".core.chinacloudapi.cn", ".core.cloudapi.de"),
    *(".storage.azure.net", ".fabric.microsoft.com"),
)


def check_names(root: str, kind: str, config: Mapping[str, object]) -> None:
    """Refuses names that could lead a request to another host than that of their cloud.

    Args:
        root: the root, such as "s3://bucket".
        kind: "s3", "gs" or "az"; the host of a web server is the user's own choice.
        config: its options, as obstore names them.

    Raises:
        ConfigError: names what does not have the form that the cloud gives it.
    """
    for what, name, has_form, example in _names(root, kind, config):
        if not has_form:
            raise ConfigError(
                # The name is shown without what may be a login before the host.
                f"{what} {name.rpartition('@')[2][:100]!r} is not written as each {what} is ({example}); check the url "
                "and the storage options",
                field="url" if name in root else "storage_options",
            )
    for endpoint in (config.get("endpoint"), config.get("base_url")):
        # An address without a scheme gets an error of its own, which names the remedy.
        if endpoint is not None and "//" in str(endpoint) and not is_plain(str(endpoint), allows_login=True):
            raise ConfigError(
                f"{shown(root)}: the endpoint that storage_options name is not an address of a host, as "
                "https://host:9000 is",
                field="storage_options",
                option="endpoint_url",
            )


def _names(url: str, kind: str, config: Mapping[str, object]) -> Iterator[tuple[str, str, bool, str]]:
    """Yields what each name is, the name, whether its form is right, and what the form is."""
    root = url.partition("://")[2]
    if kind == "gs":
        yield "bucket", root, _is(_GOOGLE_BUCKET, root), "letters, digits, dots, hyphens and underscores"
    elif kind == "s3":
        form = _ACCESS_POINT if root.startswith("arn:") else _BUCKET
        yield "bucket", root, _is(form, root), "letters, digits, dots, hyphens and underscores"
        if region := str(config.get("region") or ""):
            yield "region", region, is_region(region, own_endpoint="endpoint" in config), "as eu-central-1"
    elif kind == "az":
        container, _, host = root.partition("@")
        yield "container", container, _is(_CONTAINER, container), "letters, digits and hyphens"
        if host and "." in host:
            yield "host", host, _is(_HOST, host), "as account.dfs.core.windows.net"
        if (account := config.get("account_name")) is not None:
            yield "storage account", str(account), _is(_ACCOUNT, str(account)), "3 to 24 small letters and digits"
        for name in ("tenant_id", "client_id"):
            if (given := config.get(name)) is not None:
                yield name, str(given), _is(_TENANT, str(given)), "letters, digits, dots and hyphens"


def is_region(region: str, *, own_endpoint: bool) -> bool:
    """Whether a text can be a region: of AWS it is a part of the host's name."""
    return _is(_ANY_REGION if own_endpoint else _REGION, region)


def is_of_aws(url: str) -> bool:
    """Whether an address is one of AWS, and nothing else in any reading of it."""
    return _ends_with(url, _OF_AWS)


def is_of_azure(url: str) -> bool:
    """Whether an address is one of Azure's clouds, and nothing else in any reading of it."""
    return _ends_with(url, _OF_AZURE)


def is_plain(url: str, *, allows_login: bool = False) -> bool:
    """Whether an address of a bucket has a host and a path, nothing that clients could read in two ways."""
    try:
        parts = urlsplit(url)
        # A login there is the user's own way to name credentials.
        host = parts.netloc.rpartition("@")[2] if allows_login else parts.netloc
        return bool(_NETLOC.fullmatch(host)) and not (parts.query or parts.fragment) and url.isprintable()
    except ValueError:
        return False


def _ends_with(url: str, suffixes: tuple[str, ...]) -> bool:
    if not is_plain(url):
        return False
    parts = urlsplit(url)
    host = parts.hostname or ""
    return parts.scheme == "https" and parts.port in (None, 443) and host.endswith(suffixes) and _is(_HOST, host)


def _is(form: re.Pattern[str], name: str) -> bool:
    return form.fullmatch(name) is not None and ".." not in name


# ---------------------------------------------------------------- redirects


class Redirects(msgspec.Struct, frozen=True):
    """The redirects to follow.

    Attributes:
        max_redirects: number of redirects of one request.
        hosts: names, patterns of names (*.cluster.local), and networks (10.0.0.0/8), or None for all hosts.
    """

    max_redirects: int
    hosts: tuple[str, ...] | None

    def follows(self, address: str) -> bool:
        """Whether a redirect to this address is followed."""
        return self.hosts is None or any(_is_in(host_of(address), one) for one in self.hosts)


# obstore has the same limit.
OF_WEB_SERVERS = Redirects(10, None)
# A server of a cluster sends to the one that has the object, and once more while the cluster changes.
MOST_IN_CLUSTER = 3
_WITHHELD = frozenset({"authorization", "cookie", "cookie2", "proxy-authorization", "www-authenticate"})
_HARMLESS = frozenset({"user-agent", "accept", "accept-language", "accept-encoding"})


def own_headers(names: Iterable[str]) -> list[str]:
    """Returns the headers that obstore would send to every host of a redirect; it withholds those that log in."""
    return [f"headers.{name}" for name in names if name.lower() not in _WITHHELD | _HARMLESS]


def host_of(address: str) -> str:
    """Returns the host of a url, in lower case."""
    return urlsplit(address).hostname or ""


def unusable(hosts: Sequence[object]) -> str | None:
    """Returns the first of the hosts that is neither a name nor a network."""
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
