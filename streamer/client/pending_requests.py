"""Keeps the requests of one caller until they are answered: which must be sent now, and whose answer is next. No I/O.

`client/engine_client.py` asks for manifests and everything else with it; `loader/members/member.py` makes the requests
for manifests. If the engine goes away, the unanswered requests are sent to the next one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from streamer.errors import ManifestError, printable
from streamer.wire.messages import GetManifest, IndexProgress, ManifestReady, Message
from streamer.wire.store_options import StoreOptions

# At most this many requests of a caller are unanswered at once. The engine looks up known manifests one after the
# other. If it has to build them, more at once would only share its requests to the store and its memory.
MAX_IN_FLIGHT = 8


class Ask(NamedTuple):
    """Describes a request to the engine before it has a number.

    Attributes:
        make: makes the message, given the number that the answer will repeat.
        progress: called with each report of progress before the answer; None drops the reports.
    """

    make: Callable[[int], Message]
    progress: Callable[[IndexProgress], None] | None = None


class PendingRequests:
    """Holds the requests that are sent and unanswered, in the order of their answers.

    Args:
        asks: all requests, in the order in which the caller wants the answers. An item is taken only when its request
            is about to be sent.
        numbers: yields a number for each request that no other request of the client has.
    """

    def __init__(self, asks: Iterable[Ask], numbers: Iterator[int]) -> None:
        self._rest = iter(asks)
        self._numbers = numbers
        self._unanswered: dict[int, Ask] = {}
        self._sent_over: object = None

    def __repr__(self) -> str:
        return f"PendingRequests({list(self._unanswered)})"

    def take_unsent(self, connection: object) -> list[Message]:
        """Returns the messages to send now, and counts them as sent over this connection.

        These are the next requests, so that `MAX_IN_FLIGHT` are unanswered. If the connection is another object than
        at the last call, the unanswered requests come first: the new engine does not know them.

        Returns:
            The messages in order; an empty list if there is nothing to send.
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
        """Forgets the request with this number, whose answer has been handled; KeyError if there is none."""
        del self._unanswered[number]


class ManifestAsk(NamedTuple):
    """Asks for one manifest, and handles the answer.

    Attributes:
        request: the message, whose fields `request` (number) and `options` (storage options) are filled in later.
        progress: called with each report while the manifest is built. None drops them.
        on_note: called with each line about objects that were left out. None drops them.
    """

    request: GetManifest
    progress: Callable[[IndexProgress], None] | None = None
    on_note: Callable[[str], None] | None = None

    def make_ask(self, options: StoreOptions) -> Ask:
        """Returns the request with these storage options; it gets its number when it is sent."""
        asked = replace(self.request, options=options)
        return Ask(lambda number: replace(asked, request=number), self.progress)

    def take_answer(self, answer: ManifestReady, root: Path) -> Path:
        """Calls `on_note` with each note of the answer, and returns the folder of the manifest.

        Args:
            answer: the engine's answer to this request.
            root: the cache folder as this process sees it.

        Raises:
            ManifestError: this process does not see the manifest's folder, for example because it is not mounted.
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
