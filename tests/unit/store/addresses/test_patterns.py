"""Patterns of urls: globs, brace ranges, and what is refused before it is expanded."""

from __future__ import annotations

import time

import pytest

from streamer.errors import ConfigError
from streamer.store.addresses.patterns import UrlPattern, brace_order, count_urls, expand, require_file_url
from streamer.store.addresses.urls import find_bucket_url


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://b/x.tar", ["s3://b/x.tar"]),
        ("s3://b/{008..011}.tar", ["s3://b/008.tar", "s3://b/009.tar", "s3://b/010.tar", "s3://b/011.tar"]),
        ("s3://b/{8..10}", ["s3://b/8", "s3://b/9", "s3://b/10"]),
        ("s3://b/{a,b}/{0..1}", ["s3://b/a/0", "s3://b/a/1", "s3://b/b/0", "s3://b/b/1"]),
        ("s3://b/{only}", ["s3://b/only"]),
    ],
)
def test_braces(url: str, expected: list[str]) -> None:
    """A brace range keeps its leading zeros, alternatives keep their order, and several braces multiply."""
    assert expand(url) == expected


@pytest.mark.parametrize("url", ["s3://b/{5..1}", "s3://b/{0..99999999}"])
def test_nonsense_ranges(url: str) -> None:
    """A range that falls or that names more than a million urls is refused."""
    with pytest.raises(ConfigError, match="must rise"):
        expand(url)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("s3://b/t/", ["s3://b/t/a", "s3://b/t/a/b"], ["s3://b/t/folder/"]),
        ("s3://b/t/*.tar", ["s3://b/t/1.tar"], ["s3://b/t/x/1.tar", "s3://b/t/1.tarx", "s3://b/t/1xtar"]),
        ("s3://b/**/*.tar", ["s3://b/1.tar", "s3://b/x/y/1.tar"], ["s3://b/1.jpg"]),
        ("s3://b/t/??.x", ["s3://b/t/ab.x"], ["s3://b/t/a/.x", "s3://b/t/abc.x"]),
        ("s3://b/t/[a-c]1", ["s3://b/t/b1"], ["s3://b/t/d1"]),
        ("s3://b/t/[!a]1", ["s3://b/t/b1"], ["s3://b/t/a1"]),
        ("s3://b/t/{a,b}", ["s3://b/t/a"], ["s3://b/t/c"]),
        ("s3://b/{t,u}/*.x", ["s3://b/u/1.x"], ["s3://b/v/1.x"]),
    ],
)
def test_what_a_pattern_keeps(pattern: str, yes: list[str], no: list[str]) -> None:
    """In a pattern a star matches inside a folder only, two stars match across folders, and a dot is a dot."""
    found = UrlPattern.parse(pattern)
    assert all(map(found.matches, yes))
    assert not any(map(found.matches, no))


@pytest.mark.parametrize(
    ("url", "folder", "single"),
    [
        ("s3://b/t", "s3://b/t/", True),
        ("s3://b/t/", "s3://b/t/", True),
        ("s3://b/t/x-{0..3}", "s3://b/t/", False),
        ("s3://b/*/x", "s3://b/", False),
    ],
)
def test_what_is_listed(url: str, folder: str, single: bool) -> None:
    """The folder that is listed for a pattern is the deepest one that holds all its matches."""
    assert (UrlPattern.parse(url).folder, UrlPattern.parse(url).single) == (folder, single)


@pytest.mark.parametrize("url", ["https://h/a/*.tar", "https://h/a/"])
def test_web_servers_cannot_be_listed(url: str) -> None:
    """A folder or glob of a web server is refused with advice to write a brace range, because it cannot be listed."""
    with pytest.raises(ConfigError, match=r"000\.\.127"):
        require_file_url(url)
    assert require_file_url("https://h/a/{0..3}.tar") == "https://h/a/{0..3}.tar"


@pytest.mark.parametrize(
    ("url", "bucket"),
    [
        ("https://bkt.s3.eu-west-1.amazonaws.com/data/", "s3://bkt/data/"),
        ("https://bkt.s3.amazonaws.com/", "s3://bkt/"),
        ("https://s3.eu-west-1.amazonaws.com/bkt/data/", "s3://bkt/data/"),
        ("https://storage.googleapis.com/bkt/data/", "gs://bkt/data/"),
        ("https://acct.blob.core.windows.net/box/data/", "abfs://box@acct.dfs.core.windows.net/data/"),
    ],
)
def test_the_web_address_of_a_bucket_is_named_as_a_url(url: str, bucket: str) -> None:
    """The web address of a bucket is refused with the url of the bucket, which can be listed."""
    with pytest.raises(ConfigError, match=f"this is the address of a bucket: write {bucket}"):
        require_file_url(url)


def test_a_signed_url_is_no_dataset():
    """A signed url is refused as a dataset, because it expires and would be stored; the error does not show it."""
    with pytest.raises(ConfigError, match=r"https://h/a\.tar with a query .* signed url ends") as caught:
        require_file_url("https://h/a.tar?X-Amz-Signature=hush")
    assert "hush" not in repr(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3://b/{0..999999}{0..999999}.tar",
        "s3://b/" + "{a,b}" * 20,
        "s3://b/" + "{a}" * 5000,
        "s3://b/" + "{" * 5000 + "a" + "}" * 5000,
        "s3://b/{0..{9,999999}}{0..9999}",
        "s3://b/{{0..9},{0..99999}}",
        "s3://b/" + "x" * 1_000_000 + "{000..999}",
        "s3://b/{" + "0" * 1_000_000 + "1..999}",
        "s3://b/{0.." + "9" * 5000 + "}",
    ],
)
def test_braces_are_counted_before_they_are_expanded(url: str) -> None:
    """Braces that stand for too many urls, letters or braces are refused before they are expanded, by a short error."""
    begun = time.process_time()
    with pytest.raises(ConfigError, match="at most 1,000,000") as caught:
        expand(url)
    assert time.process_time() - begun < 1.0
    assert len(caught.value.message) < 2000


@pytest.mark.parametrize(
    "url", ["s3://b/{a,b}/{0..1}", "s3://b/{a,{b,c}}", "s3://b/{008..011}.tar", "s3://b/x", "s3://b/{a,}{0..12}"]
)
def test_the_count_is_that_of_the_expansion(url: str) -> None:
    """The count of urls of a pattern is that of its expansion, and the count of their letters is no less."""
    count, letters = count_urls(url)
    assert count == len(expand(url))
    assert letters >= sum(map(len, expand(url)))


@pytest.mark.parametrize(
    "url",
    [
        "https://x.s3" + "-" * 5000 + "x.amazonaws.co/",
        "https://x.s3" + "-a" * 100 + ".amazonaws.com.x/",
        "https://" + "x.s3-" * 50 + ".amazonaws.co/",
        "https://" + "x.s3.a" * 5000 + "/",
    ],
)
def test_no_web_address_takes_long(url: str) -> None:
    """Comparing a web address with those of buckets takes less than half a second, however nearly it matches."""
    begun = time.process_time()
    assert find_bucket_url(url) is None
    assert time.process_time() - begun < 0.5


def test_an_ipv6_host_is_no_glob() -> None:
    """The square brackets of an IPv6 address are no glob; a glob or query after it is refused."""
    url = "http://[2001:db8::1]:9000/part-{000..003}.tar"
    assert require_file_url(url) == url
    with pytest.raises(ConfigError, match="cannot be listed"):
        require_file_url("http://[::1]/part-[0-3].tar")
    with pytest.raises(ConfigError, match="with a query"):
        require_file_url("http://[::1]/a.tar?sig=x")
    place_of = brace_order(url)
    assert place_of is not None
    assert [place_of(one) for one in expand(url)] == [0, 1, 2, 3]


@pytest.mark.parametrize("url", ["https://h/a.tar?download=1", "https://h/download?file=a.tar", "https://h/a.tar?"])
def test_a_query_says_how_to_give_the_url(url: str) -> None:
    """A url with a query that is no signature is refused with advice on headers and redirects."""
    with pytest.raises(ConfigError, match=r"Authorization.*redirects") as caught:
        require_file_url(url)
    assert "signed" not in str(caught.value)
