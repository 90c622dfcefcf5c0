"""What happened at one moment, to be drawn across the curves. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from streamer.errors import without_secrets

What = Literal["engine", "epoch", "warning"]

# A kind has room of its own: a store that warns all night does not push out when the engine was restarted.
MAX_MARKS = 40
_MAX_LETTERS = 200
# Marks of one kind that are closer are one mark.
_APART_SECONDS = 10.0


class Mark(msgspec.Struct):
    """A moment.

    Attributes:
        at_seconds: Unix time of the first event.
        text: what happened, for people; of several events the last one.
        count: number of events.
    """

    at_seconds: float
    what: What
    text: str
    count: int = 1


class Marks:
    """The newest marks of each kind."""

    def __init__(self) -> None:
        self._kinds: dict[What, deque[Mark]] = {}

    def __repr__(self) -> str:
        return f"Marks({ {what: len(marks) for what, marks in self._kinds.items()} })"

    def __iter__(self) -> Iterator[Mark]:
        """Yields all marks in order of time."""
        return iter(sorted((mark for marks in self._kinds.values() for mark in marks), key=lambda one: one.at_seconds))

    def add(self, at_seconds: float, what: What, text: str, count: int = 1) -> None:
        """Adds an event; its text is cut, without control characters and secrets of urls.

        Warnings that follow within seconds count as one mark. Epochs and restarts stay apart: each has its own text.
        """
        marks = self._kinds.setdefault(what, deque(maxlen=MAX_MARKS))
        shown = clean_text(text, _MAX_LETTERS)
        if what == "warning" and marks and 0 <= at_seconds - marks[-1].at_seconds < _APART_SECONDS:
            marks[-1].count += count
            marks[-1].text = shown
        else:
            marks.append(Mark(round(at_seconds, 3), what, shown, count))

    def restore(self, marks: Iterable[Mark]) -> None:
        """Adds the marks of an earlier engine; texts are cleaned again."""
        for mark in marks:
            self.add(mark.at_seconds, mark.what, mark.text, mark.count)


def clean_text(text: str, max_letters: int) -> str:
    """Returns a client's text for the page: cut, on one line, without logins and signatures of urls."""
    shown = without_secrets(text)[:max_letters]
    return "".join(letter if letter.isprintable() else "?" for letter in shown)
