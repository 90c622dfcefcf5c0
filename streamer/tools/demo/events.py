"""The settings of the ranks, in a file, and the events that they send to the demo: one JSON text per datagram."""

from __future__ import annotations

import socket

import msgspec

# A unix datagram is whole or not at all; the longest event is a traceback's end.
MAX_EVENT_BYTES = 16384
MAX_ERROR_CHARACTERS = 3000


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one run; sizes are of one rank.

    Attributes:
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


class Indexed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Reports that the rank knows the dataset."""

    rank: int
    batches: int


class Step(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Reports one optimizer step.

    Attributes:
        at_seconds: time.monotonic() at its end: one clock for all processes of the machine.
    """

    rank: int
    epoch: int
    batch: int
    samples: int
    loss: float
    wait_seconds: float
    at_seconds: float


class EpochEnd(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Reports one epoch of one rank.

    Attributes:
        samples: samples without the repeats that fill the last batch.
        right: number of samples that were classified correctly, while learning.
        seconds: time from the first wait to the end of the last step.
        wait_seconds, longest_wait_seconds: time spent waiting for data; the longest wait for one batch.
        keys: digest of the sample keys of this rank in the order in which they came.
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


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Reports that the rank has failed; `error` is the end of its traceback."""

    rank: int
    error: str


Event = Indexed | Step | EpochEnd | Failed
_DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def send(end: socket.socket, event: Event) -> None:
    """Sends an event; waits while the other end is busy."""
    end.send(msgspec.json.encode(event))


def receive(end: socket.socket) -> Event | None:
    """Returns the next event on a socket that does not block; None if there is none."""
    try:
        return _DECODER.decode(end.recv(MAX_EVENT_BYTES))
    except BlockingIOError:
        return None
