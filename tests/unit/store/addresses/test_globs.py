"""Globs matched without backtracking, compared with regular expressions."""

from __future__ import annotations

import re
import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.errors import ConfigError
from streamer.store.addresses.globs import GlobSet
from streamer.store.addresses.patterns import UrlPattern

_PIECES = ("a", "b", "/", "*", "**", "**/", "?", "[ab]", "[!a]", "[a-b]", "[", "c]")
_EXPRESSIONS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def _expression(glob: str) -> str:
    """Returns the regular expression that means the same as the glob, and backtracks."""
    return "".join(
        _EXPRESSIONS.get(token)
        or (f"(?!/)[{token[1:-1].replace('!', '^')}]" if token[0] == "[" and len(token) > 1 else re.escape(token))
        for token in re.findall(r"\*\*/?|\*|\?|\[[^\]]+\]|[^*?\[]|\[", glob)
    )


@given(
    st.lists(st.lists(st.sampled_from(_PIECES), min_size=1, max_size=6).map("".join), min_size=1, max_size=3),
    st.lists(st.text("abc/]", max_size=7), min_size=1, max_size=8),
)
@pytest.mark.filterwarnings("ignore:Possible nested set:FutureWarning")
def test_globs_keep_what_a_regular_expression_keeps(globs: list[str], urls: list[str]) -> None:
    """A set of globs matches what the equivalent regular expressions match, and tells which have matched none."""
    expressions = {glob: re.compile(_expression(glob)) for glob in globs}
    found = GlobSet(expressions)
    for url in urls:
        assert found.matches(url) == any(one.fullmatch(url) for one in expressions.values())
    missing = {glob for glob, one in expressions.items() if not any(map(one.fullmatch, urls))}
    assert set(found.list_without_match(urls)) == missing


@pytest.mark.parametrize(
    "glob",
    [
        "s3://b/train/" + "*a" * 12 + "*c",
        "s3://b/" + "**a" * 12 + "c",
        "s3://b/" + "**/*a" * 12 + "c",
        "s3://b/train/" + "*[!b]" * 500,
        "s3://b/" + "?*" * 500 + "/x",
        "s3://b/" + "*" * 8000 + "/x",
        "s3://b/" + "[" * 8000,
        "s3://b/{" + ",".join(f"{letter}*a*a*a*a*a*a*a" for letter in string.ascii_lowercase) + "}",
    ],
)
def test_no_glob_takes_long(glob: str) -> None:
    """Matching a glob takes time by the letters of the key and not by the ways to divide it among the stars."""
    pattern, url = UrlPattern.parse(glob), "s3://b/train/" + "a" * 1000 + "b.tar"
    begun = time.process_time()
    pattern.matches(url)
    assert time.process_time() - begun < 1.0


def test_an_automaton_forgets() -> None:
    """A glob keeps telling keys apart after its automaton has dropped states, which keeps its memory bounded."""
    pattern = UrlPattern.parse("s3://b/*" + "?" * 300 + "x*y")
    for number in range(200):
        middle = chr(0x4E00 + number) * (300 + number % 3)
        assert pattern.matches(f"s3://b/{middle}x{number}y")
        assert not pattern.matches(f"s3://b/{middle}x{number}z")


def test_globs_that_differ_behind_a_star_are_bounded() -> None:
    """Globs that differ after a star are limited in number, with advice; those that differ before it may be many."""
    with pytest.raises(ConfigError, match=r"write \* instead of the braces"):
        UrlPattern.parse("s3://b/*-{00000..99999}.tar")
    many = UrlPattern.parse("s3://b/{00000..99999}/*.tar")
    assert many.matches("s3://b/77777/x.tar")
    assert not many.matches("s3://b/777777/x.tar")
