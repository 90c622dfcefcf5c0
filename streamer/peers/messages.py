"""What an engine and its peer server tell each other: one msgpack datagram each."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from streamer.peers.protocol import Facts

MOST_MESSAGE_BYTES = 16 << 10

# there: the file is in the folder. coming: it is being fetched. no: the peer fetches it itself.
LendAnswer = Literal["there", "coming", "no"]


class Start(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The first message to the server.

    Attributes:
        token: that peers must show.
        folder: the cache folder.
        facts: about the engine.
        sends: chunks sent at once.
        send_bytes: lengths of their files together.
        tls_folder: with certificate, key and authority; "": plain HTTP.
    """

    token: str
    folder: str
    facts: Facts
    sends: int
    send_bytes: int
    tls_folder: str


class Lent(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The answer to a `Lend`."""

    number: int
    answer: LendAnswer


class Leave(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The engine is about to end: chunks are refused from now on."""


class Lend(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """A peer asks for a chunk whose file is not there.

    Attributes:
        number: of this message; the answer has it.
        key: of the chunk.
        dataset: digest of its manifest.
        member: id of the peer, as it says.
        wait: answer when it is there, not that it is coming.
        due_seconds: until the peer's first reader needs it.
    """

    number: int
    key: bytes
    dataset: str
    member: str
    wait: bool
    due_seconds: float


class Opened(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The request of a `Lend` needs its chunk no more: the file is open, or the peer has gone."""

    number: int


class Counts(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """What the server has done since its start; sent at most once a second, while it changes.

    Attributes:
        served_requests: answered with a chunk, or a file of a manifest.
        served_bytes: of those files.
        served_refused: answered 503.
        served_unauthorized: answered 401.
        sends: under way.
    """

    served_requests: int = 0
    served_bytes: int = 0
    served_refused: int = 0
    served_unauthorized: int = 0
    sends: int = 0


ToServer: TypeAlias = Start | Lent | Leave
ToEngine: TypeAlias = Lend | Opened | Counts

_ENCODER = msgspec.msgpack.Encoder()
_TO_SERVER: msgspec.msgpack.Decoder[ToServer] = msgspec.msgpack.Decoder(ToServer)
_TO_ENGINE: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)


def encode(message: ToServer | ToEngine) -> bytes:
    """As it is sent."""
    return _ENCODER.encode(message)


def decode_to_server(raw: bytes) -> ToServer:
    """What the engine sends."""
    return _TO_SERVER.decode(raw)


def decode_to_engine(raw: bytes) -> ToEngine:
    """What the server sends.

    Raises:
        msgspec.MsgspecError: something else.
    """
    return _TO_ENGINE.decode(raw)
