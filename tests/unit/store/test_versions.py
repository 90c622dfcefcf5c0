"""Versions of objects that pin reads."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime

import pytest

from streamer.errors import ObjectChangedError
from streamer.manifest.model import ObjectRecord
from streamer.store.versions import etag_version, if_match, nanoseconds, read_version, require


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"ETag": '"abc-3"', "size": 1}, "etag:abc-3"),
        ({"etag": "0x8D", "size": 1}, "etag:0x8D"),
        ({"generation": "17", "size": 1}, "generation:17"),
        ({"size": 5, "mtime": 1.5}, "stat:5:1500000000"),
        ({"size": 5, "LastModified": datetime(1970, 1, 1, 0, 0, 2, 7, UTC)}, "stat:5:2000007000"),
        ({"size": 5}, "stat:5:0"),
        ({"ETag": "", "size": 5, "created": 1}, "stat:5:1000000000"),
    ],
)
def test_version_of_an_info(entry: dict[str, object], expected: str) -> None:
    """The version of an object is the strongest that the store gives: ETag, then generation, then size and time."""
    assert read_version(entry) == expected


@pytest.mark.parametrize(
    ("version", "expected"),
    [("etag:abc", '"abc"'), ('etag:W/"abc"', None), ("stat:1:2", None), ("generation:3", None)],
)
def test_if_match(version: str, expected: str | None) -> None:
    """Only strong ETags are sent as If-Match to pin a read (RFC 9110 13.1.1)."""
    assert if_match(version) == expected


def test_weak_tags_keep_their_mark() -> None:
    """The version of a weak ETag keeps its W/ mark."""
    assert etag_version('W/"x"') == 'etag:W/"x"'


@pytest.mark.parametrize(
    ("pinned", "found", "is_same"),
    [
        ("etag:x", 'etag:W/"x"', True),
        ('etag:W/"x"', "etag:x", True),
        ('etag:W/"x"', 'etag:W/"x"', True),
        ('etag:W/"x"', 'etag:W/"y"', False),
        ('etag:W/"x"', "etag:y", False),
        ('etag:W/"x"', "stat:10:0", False),
    ],
)
def test_a_weakened_tag_is_the_same_version(pinned: str, found: str, is_same: bool) -> None:
    """A weak and a strong ETag of the same value are one version, as proxies weaken tags; another value is another."""
    with contextlib.nullcontext() if is_same else pytest.raises(ObjectChangedError):
        require(ObjectRecord("https://h/k", 10, pinned), found)


def test_times_agree_however_they_come() -> None:
    """A moment as a float, which has no nanoseconds, and as a datetime is the same version."""
    moment = datetime(2026, 11, 20, 13, 40, 0, 761088, UTC)
    assert nanoseconds(moment) == nanoseconds(moment.timestamp()) == 1795182000761088000


def test_require_names_both_versions() -> None:
    """The error about a changed object has the version of the manifest and that of the store."""
    target = ObjectRecord("s3://b/k", 10, "etag:old")
    require(target, "etag:old")
    with pytest.raises(ObjectChangedError, match=r"etag:old.*etag:new") as caught:
        require(target, "etag:new")
    assert caught.value.details == {"url": "s3://b/k", "expected": "etag:old", "actual": "etag:new"}
