"""What an engine and its peer server tell each other: one msgpack datagram each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

from streamer.peers.protocol import ChunkRequest, Facts

MOST_MESSAGE_BYTES = 16 << 10

# there: the file is in the folder. coming: it is being fetched. no: the peer fetches it itself.
Availability = Literal["there", "coming", "no"]


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


class Answer(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The answer to the `Ask` of this number."""

    number: int
    availability: Availability


class Leave(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The engine is about to end: chunks are refused from now on."""


class Ask(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """A peer asks for a chunk whose file is not there."""

    number: int
    request: ChunkRequest


class Counts(msgspec.Struct, frozen=True, array_like=True, tag=1):
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


ToServer: TypeAlias = Start | Answer | Leave
ToEngine: TypeAlias = Ask | Counts

encode: Callable[[ToServer | ToEngine], bytes] = msgspec.msgpack.Encoder().encode
# Both raise msgspec.MsgspecError for anything else.
decode_to_server: Callable[[bytes], ToServer] = msgspec.msgpack.Decoder(ToServer).decode
decode_to_engine: Callable[[bytes], ToEngine] = msgspec.msgpack.Decoder(ToEngine).decode
