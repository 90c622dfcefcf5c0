"""A listing in parts: ranges of keys, halved where processes are free. Pure.

How keys are spread is not known before they are listed, so each part is listed for some pages, and what is left of it
is halved between where it stopped and its end. An empty half costs one request.
"""

from __future__ import annotations

import re
import string
from bisect import bisect_left
from collections import deque

import msgspec

# Other characters are written differently by some clients, and so sort at another place.
_CLEAN = re.compile(r"(?!\.{1,2}(/|$))[-.\w=]+(/(?!\.{1,2}(/|$))[-.\w=]+)*", re.ASCII)
_LETTERS = "".join(sorted(f"-./=_{string.digits}{string.ascii_letters}"))
# Compared behind what two keys have in common.
_WINDOW = 6
# A part is listed for twice as many pages each time, and never longer than this: 64,000 keys, two to six seconds.
_MOST_PAGES = 64


class KeyRange(msgspec.Struct, frozen=True):
    """The keys after `after`, up to `until` (empty: to the end), of which `pages` pages are listed at once."""

    after: str
    until: str = ""
    pages: int = 1

    def has(self, key: str) -> bool:
        """Whether the key is one of them."""
        return self.after < key and not self.ends_before(key)

    def ends_before(self, key: str) -> bool:
        """Whether the key is behind all of them."""
        return bool(self.until) and key > self.until

    def rest(self, last: str) -> KeyRange | None:
        """What is left behind the key that was listed last; None: nothing."""
        if self.until and last >= self.until:
            return None
        return KeyRange(last, self.until, min(2 * self.pages, _MOST_PAGES))


class KeyRanges:
    """The ranges that are still to be listed.

    Args:
        rest: all of them.
        most: that are listed at the same time.
    """

    def __init__(self, rest: KeyRange, most: int) -> None:
        self._waiting = deque([rest])
        self._most = most
        self._running = 0
        self._divide()

    def take(self) -> KeyRange | None:
        """The next one to list; None: there is none now."""
        if not self._waiting:
            return None
        self._running += 1
        return self._waiting.popleft()

    def ended(self, rest: KeyRange | None) -> None:
        """One was listed, all but the rest."""
        self._running -= 1
        if rest is not None:
            self._waiting.append(rest)
        self._divide()

    def _divide(self) -> None:
        """Halves what waits until there is enough for all."""
        whole: list[KeyRange] = []
        while self._waiting and self._running + len(self._waiting) + len(whole) < self._most:
            found = self._waiting.popleft()
            if middle := key_between(found.after, found.until):
                self._waiting.append(KeyRange(found.after, middle))
                self._waiting.append(KeyRange(middle, found.until))
            else:
                whole.append(found)
        self._waiting.extend(whole)


def is_clean(key: str) -> bool:
    """Whether every client sends this key as it is, so that a listing may begin behind it."""
    return _CLEAN.fullmatch(key) is not None


def key_between(after: str, until: str) -> str:
    """About the middle of the clean keys between two; "": none was found.

    Args:
        after: a key.
        until: a later key; empty: no end.
    """
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
    """The first letters as digits; the end of the text is 0."""
    number = 0
    for letter in text[:_WINDOW]:
        number = number * base + min(bisect_left(_LETTERS, letter) + 1, base - 1)
    return int(number * base ** (_WINDOW - len(text[:_WINDOW])))


def _text(number: int, base: int) -> str:
    digits = [number // base**place % base for place in reversed(range(_WINDOW))]
    while digits and digits[-1] == 0:
        digits.pop()
    return "".join(_LETTERS[max(digit, 1) - 1] for digit in digits)
