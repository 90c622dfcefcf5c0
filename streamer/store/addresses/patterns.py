"""Handles globs and braces in urls: what to list for a url, which objects to keep, and in which order. No I/O.

The stores list by `UrlPattern`. `engine/` and `service/` count and check the urls of clients, and indexing orders
objects by `brace_order`.
"""

from __future__ import annotations

import asyncio
import heapq
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence

import msgspec

from streamer.errors import AccessDeniedError, ConfigError, ObjectNotFoundError
from streamer.manifest.model import ObjectRecord
from streamer.store.addresses.globs import GLOB, Automaton, GlobSet
from streamer.store.addresses.urls import find_bucket_url, shown, split

_BRACE = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
# Braces may stand for this many urls, with this many letters together. More is taken for a typing mistake.
MAX_URLS = 1_000_000
MAX_EXPANDED_LETTERS = 256 << 20
# A url may have this many braces.
_MOST_BRACES = 64
# Braces inside of braces may stand for this many urls.
_MOST_NESTED = 10_000
# An end of a range has at most this many digits.
_MOST_DIGITS = 18
# Matches a choice of a brace that is a part of a file's name for every server, whatever stands beside it.
_PART_OF_NAME = re.compile(r"[\w.=+*~@-]*")
# Names of the parameters of signatures: AWS, Google, Azure, CloudFront, tokens of other services.
_SIGNED = re.compile(r"sig|token|credential|expires|policy|key|auth", re.IGNORECASE)
# An error names this many missing objects.
_MISSING_SHOWN = 5
# Up to this many objects are compared on the event loop. A page has 1,000; stores without pages have all at once.
_MOST_AT_ONCE = 10_000
# Messages show this many letters of a url.
_MOST_SHOWN = 500


def expand(url: str) -> list[str]:
    """Returns all urls that braces stand for (`a{000..127}.tar`, `a{x,y}`), in order; the url itself without braces.

    Leading zeros fix the width, as in bash.

    Raises:
        ConfigError: as `count_urls`.
    """
    count_urls(url)
    return list(_expand(url, url))


def count_urls(url: str) -> tuple[int, int]:
    """Returns how many urls the braces of a url stand for, and at most how many letters these have together.

    Raises:
        ConfigError: a range runs backwards, the urls are more than a million or longer than 256 MiB together, there are
            more than 64 braces, or more than 10,000 urls by braces inside of braces.
    """
    count = 1
    letters = len(url)
    if "{" not in url:
        return count, letters
    for number, found in enumerate(_BRACE.finditer(url)):
        numbers = _range(found[1], url)
        if numbers is None:
            choices = found[1].count(",") + 1
            longest = max(map(len, found[1].split(",")))
        else:
            first, last, width = numbers
            choices = last + 1 - first
            longest = max(width, len(str(last)))
        count *= choices
        letters += longest - len(found[0])
        if count > MAX_URLS or count * letters > MAX_EXPANDED_LETTERS:
            raise _too_many(url, f"{count:,} urls or more")
        if number >= _MOST_BRACES:
            raise _too_many(url, f"a product of more than {_MOST_BRACES} braces")
    if _BRACE.search(_BRACE.sub("", url)) is not None:
        return _count_inner_braces(url)
    return count, count * letters


def _count_inner_braces(url: str) -> tuple[int, int]:
    """Counts as `count_urls`, by expanding: the choices of outer braces are known only when the inner ones are gone."""
    if url.count("{") > _MOST_BRACES:
        raise _too_many(url, f"a product of more than {_MOST_BRACES} braces")
    count = 0
    letters = 0
    for one in _expand(url, url):
        count = count + 1
        letters = letters + len(one)
        if count > _MOST_NESTED or letters > MAX_EXPANDED_LETTERS:
            raise _too_many(url, f"more than {count - 1:,} urls by braces inside of braces")
    return count, letters


def one_of_all(url: str) -> str | None:
    """Returns one of the urls that braces stand for, which can stand for all in a check of folders.

    That is so if the braces only choose parts of names: no choice makes another folder, a segment of dots or an escaped
    letter. None if it is not so. A url without braces is returned as it is.

    Raises:
        ConfigError: as `count_urls`.
    """
    if count_urls(url)[0] > 1 and any(letter in url for letter in "%?#\\\0"):
        return None
    one = ""
    end = 0
    for found in _BRACE.finditer(url):
        choices = ["0"] if _range(found[1], url) is not None else found[1].split(",")
        if any(_PART_OF_NAME.fullmatch(choice) is None or not choice.strip(".") for choice in choices):
            return None
        one += url[end : found.start()] + choices[0]
        end = found.end()
    one += url[end:]
    return None if "{" in one or "}" in one else one


def _too_many(url: str, what: str) -> ConfigError:
    return ConfigError(
        f"the braces of {_abridge(shown(url))} stand for {what}; a url names at most {MAX_URLS:,}, of "
        f"{MAX_EXPANDED_LETTERS >> 20} MiB together: use * for whatever is there",
        field="url",
    )


def _abridge(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def require_file_url(url: str) -> str:
    """Returns the url if it may name files of a web server, which cannot be listed.

    Raises:
        ConfigError: the url has a glob or a query, or names a folder. The message says what to write instead.
    """
    beginning = _after_host(url)
    path, mark, query = url[beginning:].partition("?")
    if mark and "*" not in path and "[" not in path:
        advice = (
            "a manifest keeps urls without queries; leave it out where the server sends the file without it, give a "
            "token as a header (storage_options={'headers': {'Authorization': 'Bearer ...'}}), or name the address to "
            "which the server redirects (curl -sIL)"
        )
        if _SIGNED.search(query):
            advice = (
                "a signed url ends, and a manifest would keep its signature; name the object's own url, and give keys "
                "or headers in storage_options"
            )
        raise ConfigError(f"{shown(url)} with a query (?...): {advice}", field="url")
    if GLOB.search(url, beginning) or url.endswith("/"):
        bucket = find_bucket_url(shown(url))
        advice = (
            "name files, or use {000..127}" if bucket is None else f"this is the address of a bucket: write {bucket}"
        )
        raise ConfigError(f"{shown(url)}: a web server cannot be listed; {advice}", field="url")
    return url


def _after_host(url: str) -> int:
    """Returns the index at which the path of a url begins. Brackets before it are those of an IPv6 host, not a glob."""
    scheme, separator, rest = url.partition("://")
    return len(scheme) + len(separator) + len(rest.partition("/")[0]) if separator else 0


def _expand(url: str, whole: str) -> Iterator[str]:
    """Yields the urls that the braces of `url` stand for; `whole` is the user's url, for messages."""
    found = _BRACE.search(url)
    if found is None:
        yield url
        return
    numbers = _range(found[1], whole)
    if numbers is None:
        choices = found[1].split(",")
    else:
        first, last, width = numbers
        choices = [f"{number:0{width}d}" for number in range(first, last + 1)]
    for choice in choices:
        yield from _expand(url[: found.start()] + choice + url[found.end() :], whole)


def _range(inside: str, whole: str) -> tuple[int, int, int] | None:
    """Returns first and last number of a range (`000..127`) and its width (0 without leading zeros), or None.

    Raises:
        ConfigError: the range runs backwards, or has more than a million numbers.
    """
    numbers = _RANGE.fullmatch(inside)
    if numbers is None:
        return None
    digits = [number.lstrip("0") or "0" for number in numbers.groups()]
    first, last = (int(number[: _MOST_DIGITS + 1]) for number in digits)
    if not first <= last <= first + MAX_URLS or max(map(len, digits)) > _MOST_DIGITS:
        raise ConfigError(
            f"{{{_abridge(inside)}}} in {_abridge(shown(whole))!r} must rise and name at most {MAX_URLS:,} urls",
            field="url",
        )
    return first, last, len(numbers[1]) if numbers[1].startswith("0") else 0


async def parse_pattern(url: str) -> UrlPattern:
    """Parses a url as `UrlPattern.parse` does, in a thread if it has braces, which may stand for many urls."""
    return await asyncio.to_thread(UrlPattern.parse, url) if "{" in url else UrlPattern.parse(url)


class UrlPattern(msgspec.Struct, frozen=True):
    """Says which folder to list for a url, and which of its objects to keep.

    Attributes:
        folder: url of the deepest folder that contains everything that the url names, ending in "/".
        single: whether the url has neither globs nor braces. It names an object or a folder then, and everything below
            `folder` is kept.
        named: the urls that braces stand for, with their globs; each must exist. Empty without braces. It is a dict
            without values: the garbage collector goes through a set of 10^6 urls again and again, 0.1 s each time, but
            not through a dict of texts.
        globs: compares urls of objects with the globs. None means that there is no glob.
    """

    folder: str
    single: bool
    named: dict[str, None] = {}
    globs: GlobSet | None = None

    @classmethod
    def parse(cls, url: str) -> UrlPattern:
        """Parses a url with `*`, `?`, `**`, `[...]`, `{a,b}`, `{00..99}`.

        Raises:
            ConfigError: the braces stand for too many urls (`count_urls`), or the globs are too long (`GlobSet`).
        """
        special = re.search(r"[*?\[{]", url)
        if special is None:
            return cls(url if url.endswith("/") else url + "/", single=True)
        folder = url[: special.start()].rpartition("/")[0] + "/"
        count_urls(url)
        # They come from an iterator, between whose steps other threads can run.
        named = dict.fromkeys(_expand(url, url))
        if GLOB.search(url) is None:
            return cls(folder, single=False, named=named)
        return cls(folder, single=False, named=named if "{" in url else {}, globs=GlobSet(named))

    def may_be_asked_for_each(self, refusal: AccessDeniedError) -> bool:
        """Whether each object may be asked for by itself: the store refuses to list (403), and braces name them all."""
        return bool(self.named) and self.globs is None and refusal.details.get("status") == 403

    def matches(self, url: str) -> bool:
        """Whether the object with this url is one to keep; folder markers (urls that end in "/") never are."""
        if url.endswith("/"):
            return False
        if self.globs is not None:
            return self.globs.matches(url)
        return self.single or url in self.named

    async def filter_records(self, records: Sequence[ObjectRecord]) -> list[ObjectRecord]:
        """Returns the records of objects to keep. Globs, or very many objects, are compared in a thread."""
        if self.globs is None and len(records) <= _MOST_AT_ONCE:
            return [record for record in records if self.matches(record.url)]
        return await asyncio.to_thread(lambda: [record for record in records if self.matches(record.url)])

    def require(self, found: Collection[str]) -> None:
        """Checks that everything that braces name was found, since braces are short for a list of urls.

        Args:
            found: urls of all objects that were kept.

        Raises:
            ObjectNotFoundError: objects that braces name are missing, or one of their globs matches nothing. The
                message names the first ones.
        """
        missing: list[str] = []
        if self.globs is None:
            known = found if isinstance(found, dict) else dict.fromkeys(found)
            missing = [url for url in self.named if url not in known]
        elif self.named:
            missing = self.globs.list_without_match(found)
        if not missing:
            return
        # The missing urls are not sorted, which would hold up all threads for a second if there are 10^6.
        first = heapq.nsmallest(_MISSING_SHOWN, missing)
        what = "objects that the braces name are missing"
        if self.globs is not None:
            what = "patterns that the braces stand for match nothing"
        example = ", ".join(first) + (", ..." if len(missing) > _MISSING_SHOWN else "")
        raise ObjectNotFoundError(
            f"{len(missing)} of the {len(self.named)} {what}: {example}; correct the braces, or use * for whatever is "
            "there",
            url=first[0],
            missing=len(missing),
            named=len(self.named),
        )


def brace_order(url: str) -> Callable[[str], int] | None:
    """Returns a function that gives the place of an object's url in the order of braces; None without braces.

    `b{8..11}.tar` has the order b8, b9, b10, b11. In that of `{b,a}/*.tar` all objects below b have the first place. An
    object that the braces do not name has a place behind all others.

    Raises:
        ConfigError: as `count_urls`.
    """
    if "{" not in url:
        return None
    address = split(url)
    every = expand(address.key if address.scheme == "file" else url)
    # Patterns are found by their letters before the first wildcard: a url is compared with one or two of a thousand.
    named: dict[str, int] = {}
    globs: defaultdict[str, list[tuple[int, Automaton]]] = defaultdict(list)
    # Patterns with equal rests share an automaton: `{0000..9999}/*.tar` has one.
    shared: dict[str, Automaton] = {}
    for place, each in enumerate(every):
        magic = GLOB.search(each, _after_host(each))
        if magic is None:
            named.setdefault(each, place)
            continue
        rest = each[magic.start() :]
        if rest not in shared:
            shared[rest] = Automaton([rest])
        globs[each[: magic.start()]].append((place, shared[rest]))
    lengths = sorted({len(stem) for stem in globs})

    def place_of(object_url: str) -> int:
        found = named.get(object_url, len(every))
        if object_url.endswith("/"):
            return found
        for length in lengths:
            for place, automaton in globs.get(object_url[:length], ()):
                if place < found and automaton.find_matches(object_url[length:]):
                    found = place
        return found

    return place_of
