"""Requests of one caller, for manifests among others, that are sent a few at a time and answered in order. No I/O."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from streamer.errors import ManifestError, printable
from streamer.wire.messages import GetManifest, IndexProgress, ManifestReady, Message
from streamer.wire.store_options import StoreOptions

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

    def take_unsent(self, connection: object) -> list[Message]:
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


class ManifestAsk(NamedTuple):
    """One request for a manifest.

    Attributes:
        request: the manifest that is asked for; `request.request` and `request.options` are filled in later.
        progress: called while the manifest is built.
        on_note: called with each line about objects that were left out.
    """

    request: GetManifest
    progress: Callable[[IndexProgress], None] | None = None
    on_note: Callable[[str], None] | None = None

    def make_ask(self, options: StoreOptions) -> Ask:
        """Returns the request as it is sent: with the options, and the number that it gets."""
        asked = replace(self.request, options=options)
        return Ask(lambda number: replace(asked, request=number), self.progress)

    def take_answer(self, answer: ManifestReady, root: Path) -> Path:
        """Passes its notes on; returns the manifest's folder.

        Args:
            answer: answer of the engine.
            root: the cache folder as this process sees it.

        Raises:
            ManifestError: this process does not see the folder.
        """
        if self.on_note is not None:
            for note in answer.notes:
                self.on_note(printable(note))
        folder = root / "manifests" / answer.digest
        if not folder.is_dir():
            raise ManifestError(
                f"the engine has the manifest {answer.digest}, but {folder} is not visible to this process; "
                "mount the cache folder here and set STREAMER_CACHE_DIR",
                path=str(folder),
            )
        return folder
