"""Requests of one caller that are sent a few at a time and answered in order. No I/O."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from streamer.wire.messages import IndexProgress, Message

# Requests that a process sends before they are answered. The engine looks up known manifests one after the other; if it
# has to build them, more at once would only share its requests and its memory.
MAX_IN_FLIGHT = 8


class Ask(NamedTuple):
    """One request.

    Attributes:
        make: makes its message with the number that the answer repeats.
        progress: called with each step of the answer.
    """

    make: Callable[[int], Message]
    progress: Callable[[IndexProgress], None] | None = None


class PendingRequests:
    """Keeps requests from the time they are sent until they are answered.

    Args:
        asks: the requests; taken one by one, as earlier ones are answered.
        numbers: numbers for them, which no other request of the client has.
    """

    def __init__(self, asks: Iterable[Ask], numbers: Iterator[int]) -> None:
        self._rest = iter(asks)
        self._numbers = numbers
        self._unanswered: dict[int, Ask] = {}
        self._sent_over: object = None

    def __repr__(self) -> str:
        return f"PendingRequests({list(self._unanswered)})"

    def take_missing(self, connection: object) -> list[Message]:
        """Returns the messages that have not been sent over this connection: all if it is new, and the next requests.

        They count as sent; if they could not be, the next connection gets them.
        """
        missing = [] if connection is self._sent_over else list(self._unanswered)
        self._sent_over = connection
        for ask in itertools.islice(self._rest, MAX_IN_FLIGHT - len(self._unanswered)):
            number = next(self._numbers)
            self._unanswered[number] = ask
            missing.append(number)
        return [self._unanswered[number].make(number) for number in missing]

    @property
    def first(self) -> tuple[int, Ask] | None:
        """Number and request whose answer is next, or None if all are answered."""
        return next(iter(self._unanswered.items()), None)

    def finish(self, number: int) -> None:
        """Forgets a request that is answered."""
        del self._unanswered[number]
