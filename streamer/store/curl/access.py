"""Derives how libcurl reaches one bucket or host, from the same options as obstore's clients.

Nothing here sends a request.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast
from urllib.parse import quote

import msgspec

from streamer.errors import ConfigError, Discreet
from streamer.store.addresses.urls import Address, shown, without_login
from streamer.store.credentials import boto_keys
from streamer.store.credentials.boto_keys import Keys
from streamer.store.credentials.key_ring import Issued
from streamer.store.curl.signature import Signer
from streamer.store.obstore_clients import certificates
from streamer.store.options import Translation, family
from streamer.store.places import Places
from streamer.store.redirects import MOST_IN_CLUSTER, OF_WEB_SERVERS, Redirects

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


class Access(Discreet, msgspec.Struct, frozen=True, kw_only=True):
    """The settings with which the objects of one root are read.

    Attributes:
        base: url to which the escaped key is appended; empty if objects are named by whole urls.
        signer: signs requests; None: they are not signed.
        keys: keys from the options; None: there are none, or a ring has them.
        bundle, folder: file and folder of trusted certificates.
        proxy: url of the proxy; None: libcurl reads the environment.
        guarded: whether connections to this machine are refused; see `store.guard`.
    """

    base: str = ""
    region: str = ""
    signer: Signer | None = None
    keys: Keys | None = None
    headers: tuple[str, ...] = ()
    bundle: str | None = None
    folder: str | None = None
    connect_seconds: float = _CONNECT_SECONDS
    redirects: Redirects = OF_WEB_SERVERS
    proxy: str | None = None
    guarded: bool = False

    def address(self, name: str) -> str:
        """The url of an object, from its key or its url."""
        if self.base:
            return self.base + (name if _PLAIN.fullmatch(name) else quote(name, safe="/~"))
        name = without_login(name) if "@" in name else name
        return quote(_NO_ESCAPE.sub("%25", name) if "%" in name else name, safe=_URL_SIGNS)

    def signed(self, address: str, keys: Keys | None, method: str = "GET") -> Sequence[str]:
        """The header lines of a request, with a signature if there are keys."""
        return self.headers if self.signer is None or keys is None else self.signer.sign(address, keys, method)


def make_access(
    address: Address, translation: Translation, places: Places, issued: Issued[Keys | None] | None = None
) -> Access | None:
    """Returns the access to a root, given the result of its ring, if any; None if only obstore finds the credentials.

    Raises:
        ConfigError: the options do not make an address, a header is invalid in HTTP, or a CA file is unreadable.
    """
    if issued is not None and issued.credentials is None:
        return None
    place = None if family(address.scheme) == "http" else places.find(None if issued is None else issued.region)
    bundle, folder = trusted()
    if ca_file := translation.ca_file or (place.ca_file if place is not None else None):
        certificates(ca_file)  # or reports that it cannot be read
        bundle = ca_file
    seconds = str(translation.client.get("connect_timeout", "")).removesuffix("s")
    connect_seconds = float(seconds) if seconds else _CONNECT_SECONDS
    if place is None:
        return Access(
            headers=_headers(address, translation),
            bundle=bundle,
            folder=folder,
            connect_seconds=connect_seconds,
            proxy=_proxy(address.root),
        )
    keys = boto_keys.of_options(translation.config)
    headers = ("x-amz-request-payer: requester",) if translation.config.get("request_payer") else ()
    return Access(
        base=place.base,
        region=place.region,
        signer=Signer(place.base, place.region, headers) if keys or issued else None,
        keys=keys,
        headers=headers,
        bundle=bundle,
        folder=folder,
        connect_seconds=connect_seconds,
        redirects=Redirects(MOST_IN_CLUSTER, translation.redirects),
        proxy=_proxy(place.base),
    )


def _headers(address: Address, translation: Translation) -> tuple[str, ...]:
    """The lines of the user's headers; refuses line breaks, which libcurl would write as they are."""
    lines = []
    for name, value in cast("dict[str, str]", translation.client.get("default_headers", {})).items():
        if not (name + value).isascii() or not (name + value).isprintable():
            raise ConfigError(
                f"{shown(address.root)}: the header {name!r} has signs that HTTP does not take", field="headers"
            )
        lines.append(f"{name}: {value}" if value else f"{name};")
    return tuple(lines)


def _proxy(url: str, variables: Mapping[str, str] = os.environ) -> str | None:
    """The proxy for a url. libcurl knows HTTP_PROXY only in lower case, obstore in both; all other names agree."""
    return variables.get("http_proxy") or variables.get("HTTP_PROXY") if url.startswith("http://") else None


def trusted(variables: Mapping[str, str] = os.environ) -> tuple[str | None, str | None]:
    """The file and the folder of certificates that this machine trusts.

    SSL_CERT_FILE and SSL_CERT_DIR take precedence over the variables of Python's other HTTP clients.
    """
    known = ssl.get_default_verify_paths()
    named = (variables.get(name) for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"))
    files = (path for path in (known.cafile, *named, *_BUNDLES) if path and Path(path).is_file())
    return next(files, None), known.capath
