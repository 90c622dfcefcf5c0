"""Makes queries for S3's lists and parses their pages: of objects (version 2), and of unfinished uploads. No I/O.

`store/curl/store.py` sends the queries. Keys are asked for in escaped form (encoding-type=url), because XML cannot hold
all of them. obstore does not list here: it refuses keys that are not a path (an empty segment, "..", a tab). A key that
ends in "/" is a folder marker, not an object.

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

# An answer with more tags is refused. A page of 1,000 objects has 20,000, and each takes 100 bytes when it is parsed.
_MAX_TAGS = 200_000
# A longer token is refused, because all tokens of a list are kept to be compared. Those of S3 have 200 letters.
_MAX_TOKEN_LETTERS = 16 << 10
# A larger size is refused: it is not exact as a floating-point number, and no object is as long.
_MAX_SIZE = 1 << 53


class ListedPage(msgspec.Struct, frozen=True):
    """Holds one page of a list of objects.

    Attributes:
        records: the objects, without folder markers.
        is_empty: whether the page had nothing, not even a folder marker.
        token: token that asks for the next page, or "" if this is the last one.
    """

    records: list[ObjectRecord]
    is_empty: bool
    token: str


def build_query(prefix: str, after: str = "", token: str = "", max_keys: int = 0) -> str:
    """Returns the query for a page of objects, escaped and in the order that a signature requires.

    Args:
        prefix: beginning of the keys.
        after: key behind which the list begins. "" means its beginning.
        token: token of the page before, or "" for the first page.
        max_keys: number of objects on the page. 0 means S3's own, 1,000.
    """
    asked = {"continuation-token": token, "encoding-type": "url", "list-type": "2", "prefix": prefix}
    asked |= {"max-keys": str(max_keys or ""), "start-after": "" if token else after}
    return _query(asked)


def uploads_query(prefix: str, after: tuple[str, str]) -> str:
    """Returns the query for a page of unfinished uploads.

    Args:
        prefix: beginning of the keys.
        after: key and id of the last upload of the page before, two empty texts for the first page.
    """
    asked = {"encoding-type": "url", "key-marker": after[0], "prefix": prefix, "upload-id-marker": after[1]}
    return _query(asked, "uploads=")


def abort_query(upload: Upload) -> str:
    """Returns the query of the DELETE that removes the parts of an upload."""
    return _query({"uploadId": upload.id})


def parse_page(root: str, body: bytes) -> ListedPage:
    """Parses an answer that is a page of objects.

    Args:
        root: root of the urls, such as "s3://bucket".
        body: body of the answer.

    Raises:
        ConfigError: the answer is not such a page.
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
    """Parses an answer that is a page of unfinished uploads.

    Args:
        root: root of the urls, such as "s3://bucket".
        body: body of the answer.

    Returns:
        The uploads, and the `after` that asks for the next page, two empty texts if this is the last one.

    Raises:
        ConfigError: the answer is not such a page.
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
    """Parses the XML of an answer, and returns what `parse` makes of it.

    Args:
        root: root of the urls, for messages.
        body: body of the answer.
        names: name of the root element, and words for the answer in messages.
        parse: called with the root element and the prefix of its namespace, such as "{http://...}".

    Raises:
        ConfigError: it is not such an answer.
    """
    element, what = names
    try:
        # A document type is refused, because its entities may stand for any number of letters. So is a zero byte: an
        # encoding with such bytes would hide document types and tags.
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
    """Returns the record of one entry of a list; ValueError or LookupError if it is none."""
    fields = {child.tag: child.text or "" for child in entry}
    key = fields[f"{space}Key"]
    size = int(fields[f"{space}Size"])
    if not 0 <= size < _MAX_SIZE:
        raise ValueError(size)
    tag = fields.get(f"{space}ETag", "")
    moment = None if tag else datetime.fromisoformat(fields[f"{space}LastModified"])
    url = f"{root}/{unquote_plus(key) if escaped else key}"
    return ObjectRecord(url, size, versions.choose_version(tag, None, size, moment))
