"""Derives from a root how libcurl reaches it: address, headers, trusted certificates, and what signs requests.

Used by `store/curl/store.py` and `store/curl/handle.py`. It sends nothing. The signature is that of AWS for a request
without a body (Signature Version 4, in headers). libcurl signs as well, but derives the key of the day and looks up its
hash functions for each request: with it an object of 100 KB takes 62 us instead of 56 (2026-11-22). It would also read
"a/b" for the key "a/./b".

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
# Signs that are not escaped in a web url, besides letters and digits. A # is escaped, because it is a part of the name,
# as it is for obstore, which looks for the object.
_URL_SIGNS = "%/:=&?~+!$,;'@()*[]"
# Matches keys that need no escaping, which are most. To test that takes a third of the time of escaping.
_PLAIN = re.compile(r"[A-Za-z0-9/_.~-]*")
_NO_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONNECT_SECONDS = 5.0
_MAX_CONNECT_SECONDS = 86400.0


class Access(Discreet, msgspec.Struct, frozen=True, kw_only=True):
    """Holds the settings with which the objects of one root are read.

    Attributes:
        base: url to which the escaped key is appended, or "" if objects are named by whole urls.
        region: region of a bucket of S3, or "".
        signer: signs requests, or None if they are not signed.
        keys: keys from the options. None means that there are none, or that a key ring has them.
        headers: lines of the head of each request.
        bundle, folder: file and folder of trusted certificates. None means libcurl's own.
        connect_seconds: timeout of connecting.
        redirects: which redirects are followed.
        proxy: url of the proxy. None means that libcurl reads the environment.
        refuse_local: whether connections to this machine are refused (`store/guard.py`).
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
        """Returns the escaped url of an object, given its key in a bucket, or its url on a web server."""
        if self.base:
            return self.base + (name if _PLAIN.fullmatch(name) else quote(name, safe="/~"))
        name = without_login(name) if "@" in name else name
        return quote(_NO_ESCAPE.sub("%25", name) if "%" in name else name, safe=_URL_SIGNS)

    def sign(self, address: str, keys: AwsKeys | None, method: str = "GET") -> Sequence[str]:
        """Returns the lines of a request's head, with a signature if there are keys and a signer.

        Args:
            address: escaped url of the request.
            keys: keys to sign with, or None.
            method: HTTP method.
        """
        return self.headers if self.signer is None or keys is None else self.signer.sign(address, keys, method)


def make_access(root: StoreRoot, issued: Issued[AwsKeys | None] | None = None) -> Access | None:
    """Returns the access to a root; None if only obstore finds its credentials. Reads files, and sends nothing.

    Args:
        root: the root.
        issued: result of its key ring. None means that it has no ring, since options have keys or none are needed.

    Raises:
        ConfigError: the options make no address, a header or a timeout is invalid, or a CA file is unreadable.
    """
    if issued is not None and issued.credentials is None:
        return None
    settings = root.settings
    place = None if root.is_web else root.find_place(None if issued is None else issued.region)
    bundle, folder = find_ca_bundle()
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
    """Returns the timeout of connecting in seconds. Raises ConfigError for an option that is not one."""
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
    """Returns the lines of the user's headers. Raises ConfigError for line breaks and the like, which libcurl sends."""
    lines = []
    for name, value in cast("dict[str, str]", root.settings.client.get("default_headers", {})).items():
        if not (name + value).isascii() or not (name + value).isprintable():
            raise ConfigError(f"{root.label}: the header {name!r} has signs that HTTP does not take", field="headers")
        lines.append(f"{name}: {value}" if value else f"{name};")
    return tuple(lines)


def _proxy(url: str, variables: Mapping[str, str] = os.environ) -> str | None:
    """Returns the proxy for an http url that the environment names, or None. libcurl does not read HTTP_PROXY."""
    return variables.get("http_proxy") or variables.get("HTTP_PROXY") if url.startswith("http://") else None


def find_ca_bundle(variables: Mapping[str, str] = os.environ) -> tuple[str | None, str | None]:
    """Returns the file and the folder of certificates that this machine trusts; None for one that there is not.

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
    """Signs requests to one host and region. The parts that do not depend on the path are reused within a second.

    Args:
        base: common beginning of the addresses, such as "https://host/bucket/".
        region: region in the scope of the signature.
        headers: lines that are added to the head of each request and signed: those with AWS's own names.
        now: returns the seconds since 1970.
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
        """Returns the lines of a request's head, with its signature.

        Args:
            address: escaped url below the base. A query must be escaped and sorted as AWS requires.
            keys: the keys.
            method: HTTP method.
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
        """Computes the parts of signatures that all paths share, for these keys and this second since 1970."""
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
