"""Splits a url into its scheme, its root (the part that one client serves, such as a bucket) and its key.

Used wherever urls are handled: by the stores, `fetch/`, `engine/`, `indexing/`, `shards/` and `tools/`.
"""

from __future__ import annotations

import os
import re
from urllib.parse import unquote

import msgspec

from streamer.base.user_urls import shown, without_login
from streamer.errors import ConfigError

__all__ = ["Address", "find_bucket_url", "shown", "split", "without_login"]

# The hosts of buckets' web addresses, and the url of the bucket. Each part matches one label of a name, so that the
# patterns need no backtracking.
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
# The longest name of a host (RFC 1035); a longer one is not compared.
_MOST_HOST_LETTERS = 255

# The ARN of an access point stands for a bucket, and may itself have a slash before its last part.
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
    """Holds the parts of a url.

    Attributes:
        scheme: "s3", "https" and so on, in lower case. It is "file" for a bare path.
        root: the part that one client serves: "s3://bucket", "https://host:port", "file://".
        key: the rest without a leading slash, as the store knows it. For "file" it is an absolute path.
    """

    scheme: str
    root: str
    key: str

    @property
    def family(self) -> str | None:
        """Family of storage options: "s3", "gs", "az" or "http"; None if only fsspec or the disk serves the scheme."""
        return _FAMILIES.get(self.scheme)


def split(url: str) -> Address:
    """Splits a url; a bare path is a file. A login before the host (`user:password@`) is dropped (`base/user_urls.py`).

    Escapes (%20) in the key of a web url are decoded, unless it has a query.

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
    """Returns the url (s3://, gs://, abfs://) of what a cloud's web address names; None for any other address.

    A web address cannot be listed, so messages advise to write this url.
    """
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
