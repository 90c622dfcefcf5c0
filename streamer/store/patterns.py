"""Globs and brace ranges in urls: what to list and what to keep. Pure functions."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile

import msgspec

from streamer.errors import ConfigError, ObjectNotFoundError
from streamer.store.urls import of_web_address, shown, split

_BRACE = re.compile(r"\{([^{}]*)\}")
_GLOB = re.compile(r"[*?\[]")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
# A brace range of more urls than this is taken for a typing mistake.
MAX_URLS = 1_000_000
_MISSING_SHOWN = 5


def expand(url: str) -> list[str]:
    """Returns all urls of `a{000..127}.tar` and `a{x,y}`, in order; the url itself if it has no braces.

    Leading zeros fix the width, as in bash.

    Raises:
        ConfigError: a range that runs backwards, or more than a million urls.
    """
    return list(_expand(url, url))


def without_globs(url: str) -> str:
    """Returns the url of a store that cannot list.

    Raises:
        ConfigError: the url has a glob, names a folder, or is signed.
    """
    path, query, _ = url.partition("?")
    if query and not re.search(r"[*\[]", path):
        raise ConfigError(
            f"{shown(url)} with a query (?...): a signed url ends, and a manifest would keep its signature; name the "
            "object's own url, and give keys or headers in storage_options",
            field="url",
        )
    if _GLOB.search(url) or url.endswith("/"):
        bucket = of_web_address(shown(url))
        advice = (
            "name files, or use {000..127}" if bucket is None else f"this is the address of a bucket: write {bucket}"
        )
        raise ConfigError(f"{shown(url)}: a web server cannot be listed; {advice}", field="url")
    return url


def _expand(url: str, whole: str) -> Iterator[str]:
    found = _BRACE.search(url)
    if found is None:
        yield url
        return
    for choice in _choices(found[1], whole):
        yield from _expand(url[: found.start()] + choice + url[found.end() :], whole)


def _choices(inside: str, whole: str) -> list[str]:
    numbers = _RANGE.fullmatch(inside)
    if numbers is None:
        return inside.split(",")
    first, last = int(numbers[1]), int(numbers[2])
    if not first <= last <= first + MAX_URLS:
        raise ConfigError(f"{{{inside}}} in {whole!r} must rise and name at most {MAX_URLS:,} urls", field="url")
    width = len(numbers[1]) if numbers[1].startswith("0") else 0
    return [f"{number:0{width}d}" for number in range(first, last + 1)]


class Pattern(msgspec.Struct, frozen=True):
    """The folder to list for a url, and the objects to keep.

    Attributes:
        folder: the deepest folder that contains everything, ending in "/" (or the root).
        single: whether the url has neither glob nor braces: an object or a folder, of which everything is kept.
        named: the urls that braces stand for, with their globs; each must exist.
        expression: objects to keep, if there is a glob; None: the named ones.
    """

    folder: str
    single: bool
    named: frozenset[str] = frozenset()
    expression: re.Pattern[str] | None = None

    @classmethod
    def of(cls, url: str) -> Pattern:
        """Parses a url with `*`, `?`, `**`, `[...]`, `{a,b}`, `{00..99}`."""
        special = re.search(r"[*?\[{]", url)
        if special is None:
            return cls(url if url.endswith("/") else url + "/", single=True)
        folder, every = url[: special.start()].rpartition("/")[0] + "/", expand(url)
        if _GLOB.search(url) is None:
            return cls(folder, single=False, named=frozenset(every))
        expression = re.compile("|".join(map(_expression, every)))
        return cls(folder, single=False, named=frozenset(every if "{" in url else ()), expression=expression)

    def matches(self, url: str) -> bool:
        """Whether the object belongs to the pattern; folder markers (keys that end in "/") never do."""
        if url.endswith("/"):
            return False
        if self.expression is not None:
            return self.expression.fullmatch(url) is not None
        return self.single or url in self.named

    def require(self, found: Iterable[str]) -> None:
        """Checks that everything that braces name is among the listed urls, since braces are short for a list of urls.

        Raises:
            ObjectNotFoundError: objects that braces name are missing, or one of their globs matches nothing; names the
                first of them.
        """
        missing = sorted(self._missing(found))
        if not missing:
            return
        what = "objects that the braces name are missing"
        if self.expression is not None:
            what = "patterns that the braces stand for match nothing"
        example = ", ".join(missing[:_MISSING_SHOWN]) + (", ..." if len(missing) > _MISSING_SHOWN else "")
        raise ObjectNotFoundError(
            f"{len(missing)} of the {len(self.named)} {what}: {example}; correct the braces, or use * for whatever is "
            "there",
            url=missing[0],
            missing=len(missing),
            named=len(self.named),
        )

    def _missing(self, found: Iterable[str]) -> Iterable[str]:
        if self.expression is None:
            return self.named.difference(found)
        listed = sorted(found) if self.named else []
        return [glob for glob in self.named if not _matches_any(glob, listed)]


def _matches_any(glob: str, urls: Sequence[str]) -> bool:
    """Whether one of the sorted urls matches; looks only at those that begin as the glob does."""
    stem, expression = _GLOB.split(glob, maxsplit=1)[0], re.compile(_expression(glob))
    candidates = map(urls.__getitem__, range(bisect_left(urls, stem), len(urls)))
    return any(map(expression.fullmatch, takewhile(lambda url: url.startswith(stem), candidates)))


_TOKENS = re.compile(r"\*\*/?|\*|\?|\[[^\]]+\]|[^*?\[]+|\[")


def _expression(glob: str) -> str:
    return "".join(map(_token, _TOKENS.findall(glob)))


def _token(token: str) -> str:
    fixed = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    if token in fixed:
        return fixed[token]
    if token.startswith("[") and token.endswith("]"):
        inside = token[1:-1].replace("\\", "\\\\")
        return f"[^{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"
    return re.escape(token)


_WILDCARD = re.compile(r"[*?\[]")


def brace_order(url: str) -> Callable[[str], int] | None:
    """Returns the place of an object's url among those that braces stand for; None: there are no braces.

    `b{8..11}.tar` is b8, b9, b10, b11; of `{b,a}/*.tar` all objects below b come first. An object that none of them
    names is behind all others.
    """
    if "{" not in url:
        return None
    address = split(url)
    every = expand(address.key if address.scheme == "file" else url)
    # By what is before the first wildcard: of a thousand patterns a url is compared with one or two.
    named: dict[str, int] = {}
    globs: defaultdict[str, list[tuple[int, Pattern]]] = defaultdict(list)
    for place, each in enumerate(every):
        magic = _WILDCARD.search(each)
        if magic is None:
            named.setdefault(each, place)
        else:
            globs[each[: magic.start()]].append((place, Pattern.of(each)))
    lengths = sorted({len(stem) for stem in globs})

    def place_of(object_url: str) -> int:
        found = named.get(object_url, len(every))
        for length in lengths:
            for place, pattern in globs.get(object_url[:length], ()):
                if place < found and pattern.matches(object_url):
                    found = place
        return found

    return place_of
