"""Globs and brace ranges in urls, as pure functions: what to list and what to keep."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from streamer.errors import ConfigError, ObjectNotFoundError
from streamer.store.urls import of_web_address, shown

_BRACE = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
# A brace range of more urls than this is a typing mistake.
MAX_URLS = 1_000_000
_MISSING_SHOWN = 5


def expand(url: str) -> list[str]:
    """All urls of `a{000..127}.tar` and `a{x,y}`, in order; the url itself when it has no braces.

    Zeros in front fix the width, as in bash.

    Raises:
        ConfigError: a range that runs backwards, or more than a million urls.
    """
    return list(_expand(url, url))


def without_globs(url: str) -> str:
    """The url, where nothing can be listed.

    Raises:
        ConfigError: it has a glob, names a folder, or is signed.
    """
    path, query, _ = url.partition("?")
    if query and not re.search(r"[*\[]", path):
        raise ConfigError(
            f"{shown(url)} with a query (?...): a signed url ends, and a manifest would keep its signature; name the "
            "object's own url, and give keys or headers in storage_options",
            field="url",
        )
    if re.search(r"[*?\[]", url) or url.endswith("/"):
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
    """What to list for a url and which of it to keep.

    Attributes:
        folder: the deepest folder that holds everything, ending in "/" (or the root).
        single: neither glob nor braces: an object or a folder.
        urls: what to keep, where braces name it; None: see expression.
        expression: what to keep; None keeps everything.
    """

    folder: str
    single: bool
    urls: frozenset[str] | None = None
    expression: re.Pattern[str] | None = None

    @classmethod
    def of(cls, url: str) -> Pattern:
        """Reads a url with `*`, `?`, `**`, `[...]`, `{a,b}`, `{00..99}`."""
        special = re.search(r"[*?\[{]", url)
        if special is None:
            return cls(url if url.endswith("/") else url + "/", single=True)
        folder = url[: special.start()].rpartition("/")[0] + "/"
        if re.search(r"[*?\[]", url) is None:
            return cls(folder, single=False, urls=frozenset(expand(url)))
        return cls(folder, single=False, expression=re.compile("|".join(map(_expression, expand(url)))))

    def matches(self, url: str) -> bool:
        """Whether the object belongs to the pattern; folder markers (keys that end in "/") never do."""
        if url.endswith("/"):
            return False
        if self.urls is not None:
            return url in self.urls
        return self.expression is None or self.expression.fullmatch(url) is not None

    def require(self, found: Iterable[str]) -> None:
        """Braces name every object: a shard that is not there would be lost without a word. Globs may match few.

        Args:
            found: all urls that were listed and match.

        Raises:
            ObjectNotFoundError: objects that braces name are missing; names the first of them.
        """
        missing = sorted((self.urls or frozenset()).difference(found))
        if not missing:
            return
        named = len(self.urls or ())
        example = ", ".join(missing[:_MISSING_SHOWN]) + (", ..." if len(missing) > _MISSING_SHOWN else "")
        raise ObjectNotFoundError(
            f"{len(missing)} of the {named} objects that the braces name are missing: {example}; correct the range, or "
            "use * for whatever is there",
            url=missing[0],
            missing=len(missing),
            named=named,
        )


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
