"""The order of the objects that a url with braces names: that of a list of the urls which the braces stand for."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable

from streamer.store.patterns import Pattern, expand
from streamer.store.urls import split

_MAGIC = re.compile(r"[*?\[]")


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
        magic = _MAGIC.search(each)
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
