"""Splits urls into scheme, root (the part that one client serves) and key."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote

import msgspec

from streamer.base.logins import shown, without_login
from streamer.errors import ConfigError

__all__ = ["Address", "find_bucket_url", "shown", "split", "without_login"]

# The hosts of buckets' web addresses. Each part is what one label of a name may be, so that nothing is tried twice.
_LABELS = r"(?:\.[\w-]+)*"
_WEB_HOSTS = [
    (re.compile(rf"(?P<bucket>.+?)\.s3(?:-[\w-]+)?{_LABELS}\.amazonaws\.com"), "s3://{bucket}/{path}"),
    (re.compile(rf"s3(?:-[\w-]+)?{_LABELS}\.amazonaws\.com"), "s3://{path}"),
    (re.compile(r"storage\.(?:googleapis|cloud\.google)\.com"), "gs://{path}"),
    (re.compile(r"(?P<bucket>.+)\.storage\.googleapis\.com"), "gs://{bucket}/{path}"),
    (
        re.compile(r"(?P<bucket>[^.]+)\.(?:blob|dfs)\.core\.windows\.net"),
        "abfs://{container}@{bucket}.dfs.core.windows.net/{key}",
    ),
]
# The longest name of a host (RFC 1035); a longer one is the web address of nothing.
_MOST_HOST_LETTERS = 255

# The ARN of an access point stands for a bucket; its own name may follow a slash.
_ACCESS_POINT = re.compile(r"(arn:[^/]+:accesspoint[:/][^/]+)/?(.*)", re.DOTALL)

S3_SCHEMES = ("s3", "s3a")
FILE_SCHEMES = ("file", "local")
HTTP_SCHEMES = ("http", "https")
# The schemes whose storage options are known, each with the one name of its family.
_FAMILIES = {
    **dict.fromkeys(S3_SCHEMES, "s3"),
    **dict.fromkeys(("gs", "gcs"), "gs"),
    **dict.fromkeys(("az", "abfs", "abfss"), "az"),
    **dict.fromkeys(HTTP_SCHEMES, "http"),
}


class Address(msgspec.Struct, frozen=True):
    """The parts of a url.

    Attributes:
        scheme: "s3", "https", ...; "file" for a bare path.
        root: the part that one client serves: "s3://bucket", "https://host:port", "file://".
        key: the rest without a leading slash, as the store knows it; an absolute path for "file".
    """

    scheme: str
    root: str
    key: str

    @property
    def family(self) -> str | None:
        """The family "s3", "gs", "az" or "http"; None for schemes that only fsspec or the disk serves."""
        return _FAMILIES.get(self.scheme)


def split(url: str) -> Address:
    """Splits a url; a bare path is a file. A login is not a part of the address: see `base.logins`.

    Raises:
        ConfigError: the url is empty, or has a scheme without a bucket or host.
    """
    if not url:
        raise ConfigError("an empty url names no object", field="url")
    scheme, separator, rest = url.partition("://")
    if not separator:
        return Address("file", "file://", os.path.abspath(url) + ("/" if url.endswith("/") else ""))
    scheme = scheme.lower()
    if scheme in FILE_SCHEMES:
        return Address("file", "file://", "/" + rest.lstrip("/"))
    if scheme == "memory":
        return Address(scheme, "memory://", rest.lstrip("/"))
    if "@" in rest:
        rest = without_login(url).partition("://")[2]
    found = _ACCESS_POINT.match(rest) if scheme in S3_SCHEMES else None
    host, key = (found[1], found[2]) if found else rest.partition("/")[::2]
    if not host:
        raise ConfigError(f"{shown(url)!r} has no bucket; write {scheme}://bucket/prefix/", field="url")
    if scheme in HTTP_SCHEMES and "?" not in key:
        key = unquote(key)
    return Address(scheme, f"{scheme}://{host}", key)


def find_bucket_url(url: str) -> str | None:
    """Returns the url of a bucket or container given by a web address that cannot list; None for other addresses."""
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    if scheme not in HTTP_SCHEMES or not slash or len(host) > _MOST_HOST_LETTERS:
        return None
    for pattern, form in _WEB_HOSTS:
        if found := pattern.fullmatch(host):
            first, _, key = path.partition("/")
            names_container = "bucket" not in pattern.groupindex or "{container}" in form
            if names_container and not first:
                continue
            path = f"{first}/{key}" if "bucket" not in pattern.groupindex else path
            return form.format(path=path, container=first, key=key, **found.groupdict())
    return None
