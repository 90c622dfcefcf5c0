"""Pages of S3's lists: of objects (version 2), and of uploads in parts that were begun and not finished. Pure.

Keys are escaped (encoding-type=url): XML cannot hold all of them, and obstore refuses those that are not a path (an
empty segment, "..", a tab). A key that ends in "/" is a folder marker, not an object.

Source: AWS, "ListObjectsV2", "ListMultipartUploads" and "AbortMultipartUpload" (Amazon S3 API Reference).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TypeVar
from urllib.parse import quote, unquote_plus
from xml.etree import ElementTree

import msgspec

from streamer.errors import ConfigError
from streamer.manifest.model import ObjectRecord
from streamer.store import versions
from streamer.store.addresses.urls import shown
from streamer.store.base import Upload

Page = TypeVar("Page")

# A page of 1,000 objects has 20,000; each costs 100 bytes when it is parsed.
_MAX_TAGS = 200_000
# Tokens of S3 have 200 letters. Each is compared with all that follow.
_MAX_TOKEN_LETTERS = 16 << 10
# Exact as a floating-point number; no object is as long.
_MAX_SIZE = 1 << 53


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


def build_query(prefix: str, after: str = "", token: str = "", max_keys: int = 0) -> str:
    """Returns the query for a page of objects, escaped and in the order that a signature requires."""
    asked = {"continuation-token": token, "encoding-type": "url", "list-type": "2", "prefix": prefix}
    asked |= {"max-keys": str(max_keys or ""), "start-after": "" if token else after}
    return _query(asked)


def uploads_query(prefix: str, after: tuple[str, str]) -> str:
    """Returns the query for a page of uploads; `after` has key and id of the last one of the page before, if any."""
    asked = {"encoding-type": "url", "key-marker": after[0], "prefix": prefix, "upload-id-marker": after[1]}
    return _query(asked, "uploads=")


def abort_query(upload: Upload) -> str:
    """Returns the query of the DELETE that removes the parts of an upload."""
    return _query({"uploadId": upload.id})


def parse_page(root: str, body: bytes) -> ListedPage:
    """Parses a page of objects.

    Raises:
        ConfigError: it is not a listing.
    """

    def parse(tree: ElementTree.Element, space: str) -> ListedPage:
        escaped = tree.findtext(f"{space}EncodingType") == "url"
        found = [_record(root, entry, space, escaped=escaped) for entry in tree.iterfind(f"{space}Contents")]
        more = tree.findtext(f"{space}IsTruncated") == "true"
        token = (tree.findtext(f"{space}NextContinuationToken") or "") if more else ""
        if more and not 0 < len(token) <= _MAX_TOKEN_LETTERS:
            raise ValueError("no token")
        return ListedPage([record for record in found if not record.url.endswith("/")], not found, token)

    return _parse(root, body, ("ListBucketResult", "listing of S3, version 2"), parse)


def parse_uploads(root: str, body: bytes) -> tuple[list[Upload], tuple[str, str]]:
    """Parses a page of uploads; returns them, and the `after` of the next page: empty texts if this is the last one.

    Raises:
        ConfigError: it is not such a list.
    """

    def parse(tree: ElementTree.Element, space: str) -> tuple[list[Upload], tuple[str, str]]:
        plain = unquote_plus if tree.findtext(f"{space}EncodingType") == "url" else str
        found = [
            Upload(f"{root}/{plain(entry.findtext(f'{space}Key') or '')}", entry.findtext(f"{space}UploadId") or "")
            for entry in tree.iterfind(f"{space}Upload")
        ]
        if tree.findtext(f"{space}IsTruncated") != "true":
            return found, ("", "")
        key, number = (tree.findtext(f"{space}Next{name}Marker") or "" for name in ("Key", "UploadId"))
        return found, (plain(key), number)

    return _parse(root, body, ("ListMultipartUploadsResult", "list of S3's uploads"), parse)


def _query(asked: Mapping[str, str], *bare: str) -> str:
    given = (f"{name}={quote(value, safe='-_.~')}" for name, value in asked.items() if value)
    return "&".join(sorted([*given, *bare]))


def _parse(root: str, body: bytes, names: tuple[str, str], parse: Callable[[ElementTree.Element, str], Page]) -> Page:
    """Parses an answer, given the name of its root element, and of what it is for messages."""
    element, what = names
    try:
        # Entities of a document type stand for any number of letters. Other encodings would hide both.
        if b"<!DOCTYPE" in body or b"\0" in body or body.count(b"<") > _MAX_TAGS:
            raise ValueError("no answer of S3")
        tree = ElementTree.fromstring(body)
        space = tree.tag.removesuffix(element)
        if space == tree.tag:
            raise ValueError(tree.tag)
        return parse(tree, space)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise ConfigError(
            f"{shown(root)}: the answer is not a {what} ({type(error).__name__}); check endpoint_url",
            field="endpoint_url",
        ) from error


def _record(root: str, entry: ElementTree.Element, space: str, *, escaped: bool) -> ObjectRecord:
    fields = {child.tag: child.text or "" for child in entry}
    key = fields[f"{space}Key"]
    size = int(fields[f"{space}Size"])
    if not 0 <= size < _MAX_SIZE:
        raise ValueError(size)
    tag = fields.get(f"{space}ETag", "")
    moment = None if tag else datetime.fromisoformat(fields[f"{space}LastModified"])
    url = f"{root}/{unquote_plus(key) if escaped else key}"
    return ObjectRecord(url, size, versions.choose_version(tag, None, size, moment))
