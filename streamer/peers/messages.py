"""Defines the messages between an engine and its peer server, one msgpack datagram each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

from streamer.errors import Discreet
from streamer.peers.protocol import ChunkRequest, PeerFacts

MOST_MESSAGE_BYTES = 16 << 10

# there: the file is in the folder. coming: it is being fetched. no: the peer fetches it itself.
Availability = Literal["there", "coming", "no"]


class ServerStart(Discreet, msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Is the first message to the server.

    Attributes:
        token: secret that peers must show.
        folder: path of the cache folder.
        facts: facts of the engine.
        sends: number of chunks sent at once.
        send_bytes: limit for the lengths of their files together.
        tls_folder: folder of certificate, key and authority; "" for plain HTTP.
    """

    token: str
    folder: str
    facts: PeerFacts
    sends: int
    send_bytes: int
    tls_folder: str


class ServerAnswer(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Answers the `ServerQuestion` of this number."""

    number: int
    availability: Availability


class Leave(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Says that the engine is about to end: chunks are refused from now on."""


class ServerQuestion(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Asks for a chunk whose file is not in the folder, for a peer."""

    number: int
    request: ChunkRequest


class Counts(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Counts what the server did since its start; sent at most once a second, while it changes.

    Attributes:
        served_requests: requests answered with a chunk, or a file of a manifest.
        served_bytes: bytes of those files.
        served_refused: requests answered 503.
        served_unauthorized: requests answered 401.
        sends: chunks that are being sent.
    """

    served_requests: int = 0
    served_bytes: int = 0
    served_refused: int = 0
    served_unauthorized: int = 0
    sends: int = 0


ToServer: TypeAlias = ServerStart | ServerAnswer | Leave
ToEngine: TypeAlias = ServerQuestion | Counts

encode: Callable[[ToServer | ToEngine], bytes] = msgspec.msgpack.Encoder().encode
# Both raise msgspec.MsgspecError for anything else.
decode_to_server: Callable[[bytes], ToServer] = msgspec.msgpack.Decoder(ToServer).decode
decode_to_engine: Callable[[bytes], ToEngine] = msgspec.msgpack.Decoder(ToEngine).decode
