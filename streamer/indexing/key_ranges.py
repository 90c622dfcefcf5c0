"""Divides a listing into ranges of keys, which are halved when processes are free. Pure.

The distribution of the keys is not known before they are listed, so each part is listed for some pages, and the rest is
halved between the last key and its end. An empty half costs one request.
"""

from __future__ import annotations

import re
import string
from bisect import bisect_left
from collections import deque

import msgspec

# Other characters are escaped differently by some clients, and so sort at another place.
_CLEAN = re.compile(r"(?!\.{1,2}(/|$))[-.\w=]+(/(?!\.{1,2}(/|$))[-.\w=]+)*", re.ASCII)
_LETTERS = "".join(sorted(f"-./=_{string.digits}{string.ascii_letters}"))
# Characters compared behind the common beginning of two keys.
_WINDOW = 6
# Pages of a part are doubled each time, up to this number: 64,000 keys, two to six seconds.
_MAX_PAGES = 64


class KeyRange(msgspec.Struct, frozen=True):
    """The keys after `after`, up to `until` (empty: to the end), of which `pages` pages are listed at once."""

    after: str
    until: str = ""
    pages: int = 1

    def has(self, key: str) -> bool:
        """Whether the key is in the range."""
        return self.after < key and not self.ends_before(key)

    def ends_before(self, key: str) -> bool:
        """Whether the key comes after the range."""
        return bool(self.until) and key > self.until

    def rest(self, last: str) -> KeyRange | None:
        """Returns the range behind the last listed key; None if nothing is left."""
        if self.until and last >= self.until:
            return None
        return KeyRange(last, self.until, min(2 * self.pages, _MAX_PAGES))


class KeyRanges:
    """The ranges that are still to be listed, of which at most `limit` are listed at the same time."""

    def __init__(self, rest: KeyRange, limit: int) -> None:
        self._waiting = deque([rest])
        self._limit = limit
        self._running = 0
        self._divide()

    def take(self) -> KeyRange | None:
        """Returns the next range to list; None if there is none now."""
        if not self._waiting:
            return None
        self._running += 1
        return self._waiting.popleft()

    def finish(self, rest: KeyRange | None) -> None:
        """Records that a range was listed, except for the rest."""
        self._running -= 1
        if rest is not None:
            self._waiting.append(rest)
        self._divide()

    def _divide(self) -> None:
        """Halves waiting ranges until there are enough."""
        whole: list[KeyRange] = []
        while self._waiting and self._running + len(self._waiting) + len(whole) < self._limit:
            found = self._waiting.popleft()
            if middle := key_between(found.after, found.until):
                self._waiting.append(KeyRange(found.after, middle))
                self._waiting.append(KeyRange(middle, found.until))
            else:
                whole.append(found)
        self._waiting.extend(whole)


def is_clean(key: str) -> bool:
    """Whether every client sends this key unchanged, so that a listing may begin behind it."""
    return _CLEAN.fullmatch(key) is not None


def key_between(after: str, until: str) -> str:
    """Returns a clean key about in the middle between two keys; "" if none was found. `until` may be empty: no end."""
    same = 0
    while same < min(len(after), len(until)) and after[same] == until[same]:
        same += 1
    base = len(_LETTERS) + 1
    low = _number(after[same:], base)
    high = _number(until[same:], base) if until else base**_WINDOW
    text = _text((low + high) // 2, base)
    for middle in (after[:same] + text, after[:same] + text.replace("/", "0")):
        if after < middle and (not until or middle < until) and is_clean(middle):
            return middle
    return ""


def _number(text: str, base: int) -> int:
    """Returns the first characters as digits of a number; the end of the text is 0."""
    number = 0
    for letter in text[:_WINDOW]:
        number = number * base + min(bisect_left(_LETTERS, letter) + 1, base - 1)
    return int(number * base ** (_WINDOW - len(text[:_WINDOW])))


def _text(number: int, base: int) -> str:
    digits = [number // base**place % base for place in reversed(range(_WINDOW))]
    while digits and digits[-1] == 0:
        digits.pop()
    return "".join(_LETTERS[max(digit, 1) - 1] for digit in digits)
