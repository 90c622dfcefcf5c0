"""Urls split into scheme, root and key, and their shown form."""

from __future__ import annotations

import os

import pytest

from streamer.errors import ConfigError
from streamer.store.addresses.urls import Address, shown, split


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://bucket/a/b", Address("s3", "s3://bucket", "a/b")),
        ("S3://bucket", Address("s3", "s3://bucket", "")),
        ("gs://b/x y", Address("gs", "gs://b", "x y")),
        ("abfs://c@acct.dfs.core.windows.net/k", Address("abfs", "abfs://c@acct.dfs.core.windows.net", "k")),
        ("https://h:8/a%20b", Address("https", "https://h:8", "a b")),
        ("/data/x", Address("file", "file://", "/data/x")),
        ("file:///data/x/", Address("file", "file://", "/data/x/")),
        ("memory://a/b", Address("memory", "memory://", "a/b")),
    ],
)
def test_split(url: str, expected: Address) -> None:
    """A url is split into its scheme, the root that one client serves, and the key that the store calls the object."""
    assert split(url) == expected


def test_relative_paths_are_absolute() -> None:
    """A relative path is split as its absolute one, so that a file has one url in every working folder."""
    assert split("x/y/").key == os.path.abspath("x/y") + "/"


@pytest.mark.parametrize("url", ["", "s3://", "s3:///key"])
def test_no_bucket(url: str) -> None:
    """A url that names no bucket is refused."""
    with pytest.raises(ConfigError, match=r"has no bucket|an empty url names no object"):
        split(url)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://h/k?X-Amz-Signature=abc", "https://h/k"),
        ("https://user:word@h/k", "https://h/k"),
        ("s3://b/a@b", "s3://b/a@b"),
        ("/data/x", "/data/x"),
    ],
)
def test_shown_hides_secrets(url: str, expected: str) -> None:
    """The shown form of a url has neither its signature nor its credentials."""
    assert shown(url) == expected
