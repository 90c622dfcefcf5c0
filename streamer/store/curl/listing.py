"""Pages of a listing of S3, version 2. Pure.

Keys are escaped (encoding-type=url): XML cannot hold all of them, and obstore refuses those that are not a path (an
empty segment, "..", a tab). A key that ends in "/" is a folder marker, not an object.

Source: AWS, "ListObjectsV2" (Amazon S3 API Reference).
"""

from __future__ import annotations

from datetime import datetime
from urllib.parse import quote, unquote_plus
from xml.etree import ElementTree

import msgspec

from streamer.errors import ConfigError
from streamer.manifest.model import ObjectRecord
from streamer.store import versions
from streamer.store.urls import shown


class ListedPage(msgspec.Struct, frozen=True):
    """One page of a listing.

    Attributes:
        records: the objects, without folder markers.
        is_empty: whether there was nothing, not even a marker.
        token: token of the next page; empty if this is the last one.
    """

    records: list[ObjectRecord]
    is_empty: bool
    token: str


def query(prefix: str, after: str = "", token: str = "", most: int = 0) -> str:
    """Returns the query, escaped and in the order that a signature requires."""
    asked = {"continuation-token": token, "encoding-type": "url", "list-type": "2", "prefix": prefix}
    if most:
        asked["max-keys"] = str(most)
    if after and not token:
        asked["start-after"] = after
    return "&".join(f"{name}={quote(value, safe='-_.~')}" for name, value in sorted(asked.items()) if value)


def page_of(root: str, body: bytes) -> ListedPage:
    """Parses a page.

    Raises:
        ConfigError: it is not a listing.
    """
    try:
        tree = ElementTree.fromstring(body)
        space = tree.tag.removesuffix("ListBucketResult")
        if space == tree.tag:
            raise ValueError(tree.tag)
        escaped = tree.findtext(f"{space}EncodingType") == "url"
        found = [_record(root, entry, space, escaped=escaped) for entry in tree.iterfind(f"{space}Contents")]
        more = tree.findtext(f"{space}IsTruncated") == "true"
        token = (tree.findtext(f"{space}NextContinuationToken") or "") if more else ""
        if more and not token:
            raise ValueError("no token")
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise ConfigError(
            f"{shown(root)}: the answer is not a listing of S3, version 2 ({type(error).__name__}); check endpoint_url",
            field="endpoint_url",
        ) from error
    return ListedPage([record for record in found if not record.url.endswith("/")], not found, token)


def _record(root: str, entry: ElementTree.Element, space: str, *, escaped: bool) -> ObjectRecord:
    fields = {child.tag: child.text or "" for child in entry}
    key, size, tag = fields[f"{space}Key"], int(fields[f"{space}Size"]), fields.get(f"{space}ETag", "")
    moment = None if tag else datetime.fromisoformat(fields[f"{space}LastModified"])
    url = f"{root}/{unquote_plus(key) if escaped else key}"
    return ObjectRecord(url, size, versions.of_answer(tag, None, size, moment))
