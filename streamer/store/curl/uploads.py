"""Pages of S3's list of uploads in parts that were begun and not finished; pure.

Source: AWS, "ListMultipartUploads" and "AbortMultipartUpload" (Amazon S3 API Reference).
"""

from __future__ import annotations

from urllib.parse import quote, unquote_plus
from xml.etree import ElementTree

from streamer.errors import ConfigError
from streamer.store.base import Upload
from streamer.store.urls import shown


def query(prefix: str, after: tuple[str, str]) -> str:
    """What is asked for, escaped and in the order that a signature wants.

    Args:
        prefix: of the keys.
        after: key and id of the last upload of the page before; empty ones: there is none.
    """
    asked = {"encoding-type": "url", "key-marker": after[0], "prefix": prefix, "upload-id-marker": after[1]}
    given = (f"{name}={_escaped(value)}" for name, value in asked.items() if value)
    return "&".join(sorted([*given, "uploads="]))


def abort_query(upload: Upload) -> str:
    """What a DELETE of the upload's object asks for."""
    return f"uploadId={_escaped(upload.id)}"


def page_of(root: str, body: bytes) -> tuple[list[Upload], tuple[str, str]]:
    """Reads a page: its uploads, and behind which the next page begins; empty ones: this is the last page.

    Raises:
        ConfigError: it is no such list.
    """
    try:
        tree = ElementTree.fromstring(body)
        space = tree.tag.removesuffix("ListMultipartUploadsResult")
        if space == tree.tag:
            raise ValueError(tree.tag)
        plain = unquote_plus if tree.findtext(f"{space}EncodingType") == "url" else str
        found = [
            Upload(f"{root}/{plain(entry.findtext(f'{space}Key') or '')}", entry.findtext(f"{space}UploadId") or "")
            for entry in tree.iterfind(f"{space}Upload")
        ]
        if tree.findtext(f"{space}IsTruncated") != "true":
            return found, ("", "")
        key, number = (tree.findtext(f"{space}Next{name}Marker") or "" for name in ("Key", "UploadId"))
        return found, (plain(key), number)
    except (ElementTree.ParseError, ValueError) as error:
        raise ConfigError(
            f"{shown(root)}: what answers is no list of S3's uploads ({type(error).__name__})", field="endpoint_url"
        ) from error


def _escaped(value: str) -> str:
    return quote(value, safe="-_.~")
