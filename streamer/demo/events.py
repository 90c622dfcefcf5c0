"""What the ranks are told in a file, and what they send to the demo: one JSON text per datagram on a unix socket."""

from __future__ import annotations

import json
import socket
from dataclasses import asdict, dataclass

# A unix datagram is whole or not at all; the longest event is a traceback's end.
MAX_EVENT_BYTES = 16384
MAX_ERROR_CHARACTERS = 3000


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run; sizes are of one rank.

    Attributes:
        url, manifest, storage_options: of the dataset, as fsspec takes them.
        cache_bytes: limit of the cache.
        events: path of the socket that receives the events of the ranks.
    """

    url: str
    manifest: str
    storage_options: dict[str, object]
    cache_bytes: int
    seed: int
    epochs: int
    batch_size: int
    workers: int
    events: str


@dataclass(frozen=True, kw_only=True)
class Indexed:
    """The rank knows the dataset."""

    rank: int
    batches: int


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
        wait_seconds, longest_wait_seconds: of them waiting for data; for one batch.
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
    """The rank has failed; `error` is the end of its traceback."""

    rank: int
    error: str


Event = Indexed | Step | EpochEnd | Failed
_KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in (Indexed, Step, EpochEnd, Failed)}


def send(end: socket.socket, event: Event) -> None:
    """Sends; waits while the other end is busy."""
    end.send(json.dumps({"kind": type(event).__name__, **asdict(event)}).encode())


def receive(end: socket.socket) -> Event | None:
    """The next event on a socket that does not block; None: none there."""
    try:
        values = json.loads(end.recv(MAX_EVENT_BYTES))
    except BlockingIOError:
        return None
    return _KINDS[values.pop("kind")](**values)
