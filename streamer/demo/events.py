"""The events that the ranks send to the demo while they train: one JSON text per datagram on a unix socket."""

from __future__ import annotations

import json
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

# A unix datagram is whole or not at all; the longest event is a traceback's end.
MAX_EVENT_BYTES = 16384
MAX_ERROR_CHARACTERS = 3000


@dataclass(frozen=True, kw_only=True)
class Indexed:
    """The rank knows the dataset."""

    rank: int
    batches: int
    samples: int


@dataclass(frozen=True, kw_only=True)
class Step:
    """One optimizer step.

    Attributes:
        batch: its number in the epoch.
        wait_seconds: how long the rank waited for the batch.
        at_seconds: time.monotonic() at its end: one clock for all processes of the machine.
    """

    rank: int
    epoch: int
    batch: int
    samples: int
    loss: float
    wait_seconds: float
    at_seconds: float


@dataclass(frozen=True, kw_only=True)
class EpochEnd:
    """One epoch of one rank.

    Attributes:
        samples: without the repeats that fill the last batch; 0 where the others have them all.
        loss: mean over its steps.
        right: samples that were named right, while learning.
        seconds: from the first wait to the end of the last step.
        wait_seconds: of them waiting for data.
        longest_wait_seconds: for one batch.
        keys: the sample keys of this rank, hashed in the order in which they came.
    """

    rank: int
    epoch: int
    samples: int
    loss: float
    right: int
    seconds: float
    wait_seconds: float
    longest_wait_seconds: float
    keys: str


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The rank has failed.

    Attributes:
        error: the end of its traceback.
    """

    rank: int
    error: str


Event = Indexed | Step | EpochEnd | Failed
_KINDS: dict[str, type[Indexed | Step | EpochEnd | Failed]] = {
    kind.__name__: kind for kind in (Indexed, Step, EpochEnd, Failed)
}


class Sender:
    """A rank's end."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.connect(str(path))
        except OSError:
            self._socket.close()
            raise

    def send(self, event: Event) -> None:
        """Sends; waits while the other end is busy."""
        self._socket.send(json.dumps({"kind": type(event).__name__, **asdict(event)}).encode())

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()


class Receiver:
    """The demo's end.

    Args:
        path: of its socket; short, as unix sockets require.
    """

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def fileno(self) -> int:
        """For select."""
        return self._socket.fileno()

    def receive(self) -> Event | None:
        """The next event; None: none there."""
        try:
            values = json.loads(self._socket.recv(MAX_EVENT_BYTES))
        except BlockingIOError:
            return None
        return _KINDS[values.pop("kind")](**values)
