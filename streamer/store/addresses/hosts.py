"""Decides by grammar whether names and addresses are those of a cloud, and which redirects are followed. No I/O.

The stores check names before they open anything (`options.py`, `places.py`, `root.py`, `guard.py` and `__init__.py` of
`store/`), and `store/curl/` follows redirects by it. Account, container, bucket and region become parts of a host name
or of a path. A sign that ends a host name in a url (# / @ : ?) would lead the request, and the credentials with it, to
another host. Therefore names are always compared with the grammar that their clouds publish, and the address made of
them is checked.

A web server may redirect its clients anywhere: it serves data of others, and gets no keys. An S3 endpoint that is a
cluster of caches (AIStore, Alluxio) redirects to its own servers. Any other S3 endpoint redirects to another region,
where a request needs another signature.

Sources: AWS, "General purpose bucket naming rules". Google, "About Cloud Storage buckets". Microsoft, "Naming rules and
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

# Besides AWS's present rules, this allows upper case and underscores, which older buckets and other servers have, and a
# tenant before a colon, as in Ceph.
_BUCKET = re.compile(r"(?:[A-Za-z0-9_-]{1,64}:)?[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}", re.ASCII)
_ACCESS_POINT = re.compile(r"arn:aws[a-z-]*:s3[a-z-]*:[a-z0-9-]*:[0-9]*:[A-Za-z0-9:/._-]{1,255}", re.ASCII)
_GOOGLE_BUCKET = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,221}", re.ASCII)
# A container of Azure, or a workspace of OneLake.
_CONTAINER = re.compile(r"[$A-Za-z0-9_-][$A-Za-z0-9._-]{0,254}", re.ASCII)
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}(?:-secondary)?", re.ASCII)
_TENANT = re.compile(r"[A-Za-z0-9.-]{1,253}", re.ASCII)
# The form of AWS's regions. Other servers have other names (`_ANY_REGION`), which become part of no host name.
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
        root: root of the urls, such as "s3://bucket".
        kind: family of the root: "s3", "gs" or "az".
        config: its settings, in obstore's names.

    Raises:
        ConfigError: a bucket, region, container, host, account, tenant, client id or endpoint does not have the form
            that the cloud gives it.
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
        # An endpoint without a scheme is refused elsewhere, by an error that names the remedy.
        if endpoint is not None and "//" in str(endpoint) and not is_plain(str(endpoint), allows_login=True):
            raise ConfigError(
                f"{shown(root)}: the endpoint that storage_options name is not an address of a host, as "
                "https://host:9000 is",
                field="storage_options",
                option="endpoint_url",
            )


def _names(url: str, kind: str, config: Mapping[str, object]) -> Iterator[tuple[str, str, bool, str]]:
    """Yields for each name what it is, the name, whether its form is right, and a description of the form."""
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
    """Whether a text can be a region. Of AWS it is a part of the host's name, so the form is stricter.

    Args:
        region: the text.
        own_endpoint: whether options name an endpoint, which may be another server's.
    """
    return _is(_ANY_REGION if own_endpoint else _REGION, region)


def is_of_aws(url: str) -> bool:
    """Whether an address is an https address of AWS, and cannot be read as any other."""
    return _ends_with(url, _OF_AWS)


def is_of_azure(url: str) -> bool:
    """Whether an address is an https address of one of Azure's clouds, and cannot be read as any other."""
    return _ends_with(url, _OF_AZURE)


def is_plain(url: str, *, allows_login: bool = False) -> bool:
    """Whether an address has only a scheme, a host with a port, and a path, so that all clients read it alike.

    Args:
        url: the address.
        allows_login: whether a login may stand before the host.
    """
    try:
        parts = urlsplit(url)
        # A login in an endpoint is the user's own way to name credentials.
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
    """Says which redirects of one root are followed.

    Attributes:
        max_redirects: how many redirects of one request are followed.
        hosts: names, patterns of names (*.cluster.local), and networks (10.0.0.0/8). None means all hosts.
    """

    max_redirects: int
    hosts: tuple[str, ...] | None

    def follows(self, address: str) -> bool:
        """Whether a redirect to this url is followed, by its host."""
        return self.hosts is None or any(_is_in(host_of(address), one) for one in self.hosts)


# Web servers may redirect anywhere, ten times as in obstore.
OF_WEB_SERVERS = Redirects(10, None)
# Redirects of one request inside a cluster: to the server that has the object, and to others while the cluster changes.
MOST_IN_CLUSTER = 3
_WITHHELD = frozenset({"authorization", "cookie", "cookie2", "proxy-authorization", "www-authenticate"})
_HARMLESS = frozenset({"user-agent", "accept", "accept-language", "accept-encoding"})


def own_headers(names: Iterable[str]) -> list[str]:
    """Returns those headers of the user that obstore would send on to any host of a redirect, as "headers.NAME".

    Headers that log in are not among them, because obstore withholds them; nor are those that tell nothing of the user.
    """
    return [f"headers.{name}" for name in names if name.lower() not in _WITHHELD | _HARMLESS]


def host_of(address: str) -> str:
    """Returns the host of a url in lower case, without port and login; "" if it has none."""
    return urlsplit(address).hostname or ""


def unusable(hosts: Sequence[object]) -> str | None:
    """Returns the `repr` of the first entry that is neither a name nor a network; None if there is no such entry."""
    return next((repr(one) for one in hosts if not isinstance(one, str) or not _is_host(one)), None)


def _is_host(text: str) -> bool:
    """Whether a text may be an entry of `Redirects.hosts`: not empty, and with a slash a network."""
    if "/" not in text:
        return text != ""
    try:
        ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def _is_in(host: str, allowed: str) -> bool:
    """Whether a host fits one entry of `Redirects.hosts`. Only an IP address is in a network."""
    if "/" not in allowed:
        return fnmatchcase(host, allowed.lower())
    try:
        return ip_address(host) in ip_network(allowed, strict=False)
    except ValueError:  # a name
        return False
