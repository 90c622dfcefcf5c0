"""Derives how libcurl reaches one bucket or host from its root: address, headers, trust, and what signs requests.

Nothing here sends a request. The signature is AWS's, of a request without a body (Signature Version 4, in headers).
libcurl signs as well, but derives the key of the day and looks up its hash functions for each request, which was 12 of
the 62 us of an object of 100 KB (now 56, 2026-11-22), and it would read "a/b" for the key "a/./b".

Source: AWS, "Signature Calculations for the Authorization Header" (Amazon S3 API Reference).
"""

from __future__ import annotations

import hmac
import os
import re
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import cast
from urllib.parse import quote, urlsplit

import msgspec

from streamer.errors import ConfigError, Discreet
from streamer.store.addresses.hosts import MOST_IN_CLUSTER, OF_WEB_SERVERS, Redirects
from streamer.store.addresses.urls import without_login
from streamer.store.credentials import boto_keys
from streamer.store.credentials.boto_keys import AwsKeys
from streamer.store.credentials.key_ring import Issued
from streamer.store.obstore_clients import certificates
from streamer.store.root import StoreRoot

# Files in which distributions keep trusted certificates, for a Python whose ssl does not know them.
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
# Characters of a web url besides letters and digits; escaped ones stay as they are. A # is part of the name, as it is
# for obstore, which finds the object.
_URL_SIGNS = "%/:=&?~+!$,;'@()*[]"
# Most keys need no escaping, which takes a third of the time.
_PLAIN = re.compile(r"[A-Za-z0-9/_.~-]*")
_NO_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONNECT_SECONDS = 5.0
_MAX_CONNECT_SECONDS = 86400.0


class Access(Discreet, msgspec.Struct, frozen=True, kw_only=True):
    """The settings with which the objects of one root are read.

    Attributes:
        base: url to which the escaped key is appended; empty if objects are named by whole urls.
        signer: signs requests; None: they are not signed.
        keys: keys from the options; None: there are none, or a ring has them.
        bundle, folder: file and folder of trusted certificates.
        proxy: url of the proxy; None: libcurl reads the environment.
        refuse_local: whether connections to this machine are refused; see `store.guard`.
    """

    base: str = ""
    region: str = ""
    signer: Signer | None = None
    keys: AwsKeys | None = None
    headers: tuple[str, ...] = ()
    bundle: str | None = None
    folder: str | None = None
    connect_seconds: float = _CONNECT_SECONDS
    redirects: Redirects = OF_WEB_SERVERS
    proxy: str | None = None
    refuse_local: bool = False

    def address(self, name: str) -> str:
        """Returns the url of an object, from its key or its url."""
        if self.base:
            return self.base + (name if _PLAIN.fullmatch(name) else quote(name, safe="/~"))
        name = without_login(name) if "@" in name else name
        return quote(_NO_ESCAPE.sub("%25", name) if "%" in name else name, safe=_URL_SIGNS)

    def sign(self, address: str, keys: AwsKeys | None, method: str = "GET") -> Sequence[str]:
        """Returns the header lines of a request, with a signature if there are keys."""
        return self.headers if self.signer is None or keys is None else self.signer.sign(address, keys, method)


def make_access(root: StoreRoot, issued: Issued[AwsKeys | None] | None = None) -> Access | None:
    """Returns the access to a root, given the result of its ring, if any; None if only obstore finds the credentials.

    Raises:
        ConfigError: the options do not make an address, a header is invalid in HTTP, or a CA file is unreadable.
    """
    if issued is not None and issued.credentials is None:
        return None
    settings = root.settings
    place = None if root.is_web else root.find_place(None if issued is None else issued.region)
    bundle, folder = find_trusted_certificates()
    if ca_file := settings.ca_file or (place.ca_file if place is not None else None):
        certificates(ca_file)  # or reports that it cannot be read
        bundle = ca_file
    connect_seconds = _connect_seconds(root)
    if place is None:
        return Access(
            headers=_header_lines(root),
            bundle=bundle,
            folder=folder,
            connect_seconds=connect_seconds,
            proxy=_proxy(root.url),
        )
    keys = boto_keys.find_in_options(settings.config)
    headers = ("x-amz-request-payer: requester",) if settings.config.get("request_payer") else ()
    return Access(
        base=place.base,
        region=place.region,
        signer=Signer(place.base, place.region, headers) if keys or issued else None,
        keys=keys,
        headers=headers,
        bundle=bundle,
        folder=folder,
        connect_seconds=connect_seconds,
        redirects=Redirects(MOST_IN_CLUSTER, settings.redirects),
        proxy=_proxy(place.base),
    )


def _connect_seconds(root: StoreRoot) -> float:
    """Returns the time for a connection; refuses what is none, as a client of a service may send it."""
    text = str(root.settings.client.get("connect_timeout", _CONNECT_SECONDS)).removesuffix("s")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < _MAX_CONNECT_SECONDS:
        raise ConfigError(
            f"{root.label}: connect_timeout={text[:40]!r} is not a number of seconds",
            field="storage_options",
            option="config_kwargs",
        )
    return seconds


def _header_lines(root: StoreRoot) -> tuple[str, ...]:
    """Returns the lines of the user's headers; refuses line breaks, which libcurl would write as they are."""
    lines = []
    for name, value in cast("dict[str, str]", root.settings.client.get("default_headers", {})).items():
        if not (name + value).isascii() or not (name + value).isprintable():
            raise ConfigError(f"{root.label}: the header {name!r} has signs that HTTP does not take", field="headers")
        lines.append(f"{name}: {value}" if value else f"{name};")
    return tuple(lines)


def _proxy(url: str, variables: Mapping[str, str] = os.environ) -> str | None:
    """Returns the proxy for a url. libcurl knows HTTP_PROXY only in lower case, obstore in both cases."""
    return variables.get("http_proxy") or variables.get("HTTP_PROXY") if url.startswith("http://") else None


def find_trusted_certificates(variables: Mapping[str, str] = os.environ) -> tuple[str | None, str | None]:
    """Returns the file and the folder of certificates that this machine trusts.

    SSL_CERT_FILE and SSL_CERT_DIR take precedence over the variables of Python's other HTTP clients.
    """
    known = ssl.get_default_verify_paths()
    named = (variables.get(name) for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"))
    files = (path for path in (known.cafile, *named, *_BUNDLES) if path and Path(path).is_file())
    return next(files, None), known.capath


# ---------------------------------------------------------------- signatures

_ALGORITHM = "AWS4-HMAC-SHA256"
_NO_BODY = sha256(b"").hexdigest()


class Signer:
    """Signs requests to one host and region. The parts that do not depend on the path are reused for a second.

    Args:
        base: common beginning of the addresses, e.g. "https://host/bucket/".
        region: region in the scope of the signature.
        headers: header lines of each request that are signed: those with AWS's own names.
        now: returns the seconds since the epoch.
    """

    def __init__(self, base: str, region: str, headers: Sequence[str], now: Callable[[], float] = time.time) -> None:
        parts = urlsplit(base)
        self._origin_length = len(f"{parts.scheme}://{parts.netloc}")
        self._host = f"Host: {parts.netloc}"
        self._region = region
        self._headers = headers
        self._now = now
        self._second = 0
        self._keys: AwsKeys | None = None
        self._signing_key = b""
        self._lines: list[str] = []
        self._canonical_rest = ""
        self._to_sign = ""
        self._authorization = ""

    def sign(self, address: str, keys: AwsKeys, method: str = "GET") -> list[str]:
        """Returns the header lines of a request, with its signature.

        Args:
            address: an escaped url below the base; a query must be escaped and sorted as AWS requires.
            keys: the present keys.
            method: the HTTP method.
        """
        second = int(self._now())
        if second != self._second or keys is not self._keys:
            self._prepare(second, keys)
        path, _, query = address[self._origin_length :].partition("?")
        canonical = f"{method}\n{path}\n{query}{self._canonical_rest}"
        to_sign = self._to_sign + sha256(canonical.encode()).hexdigest()
        signature = hmac.digest(self._signing_key, to_sign.encode(), "sha256").hex()
        return [self._authorization + signature, *self._lines]

    def _prepare(self, second: int, keys: AwsKeys) -> None:
        self._second = second
        self._keys = keys
        moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second))
        scope = (moment[:8], self._region, "s3", "aws4_request")
        self._signing_key = f"AWS4{keys.secret}".encode()
        for part in scope:
            self._signing_key = hmac.digest(self._signing_key, part.encode(), "sha256")
        self._lines = [self._host, f"x-amz-content-sha256: {_NO_BODY}", f"x-amz-date: {moment}", *self._headers]
        if keys.token is not None:
            self._lines.append(f"x-amz-security-token: {keys.token}")
        named = sorted(
            (name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in self._lines)
        )
        names = ";".join(name for name, _ in named)
        listed = "".join(f"{name}:{value}\n" for name, value in named)
        self._canonical_rest = f"\n{listed}\n{names}\n{_NO_BODY}"
        self._to_sign = f"{_ALGORITHM}\n{moment}\n{'/'.join(scope)}\n"
        self._authorization = (
            f"Authorization: {_ALGORITHM} Credential={keys.key}/{'/'.join(scope)}, SignedHeaders={names}, Signature="
        )
