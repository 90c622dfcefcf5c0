"""Defines the messages between an engine and its process that answers peers, one msgpack datagram each.

The engine's end is `peers/server_process.py` (its answers come from `peers/serving.py`, the first message from
`peers/group.py`), the other `peers/server.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

from streamer.errors import Discreet
from streamer.peers.protocol import ChunkRequest, PeerFacts

MOST_MESSAGE_BYTES = 16 << 10

# The answer to where a chunk is. "there" means that its file is in the cache folder, "coming" that it is being fetched,
# and "no" that the peer must fetch it itself.
Availability = Literal["there", "coming", "no"]


class ServerStart(Discreet, msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Tells the server what it needs to begin; the first message to it.

    Attributes:
        token: secret that peers must show.
        folder: path of the cache folder.
        facts: facts of the engine, which peers may ask for.
        sends: how many files may be sent at once.
        send_bytes: limit in bytes for the lengths of these files together.
        tls_folder: folder of certificate, key and authority (`tls`). "" means plain HTTP.
    """

    token: str
    folder: str
    facts: PeerFacts
    sends: int
    send_bytes: int
    tls_folder: str


class ServerAnswer(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Answers the `ServerQuestion` with the same number."""

    number: int
    availability: Availability


class Leave(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Says that the engine is about to end: the server refuses chunks from now on, and ends."""


class ServerQuestion(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Asks the engine where a chunk is whose file is not in the folder.

    Attributes:
        number: number that the answer repeats.
        request: what the peer has asked for.
    """

    number: int
    request: ChunkRequest


class Counts(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Tells the engine what the server did since its start; sent at most once a second, when something was counted.

    Attributes:
        served_requests: requests answered with a chunk, or a file of a manifest.
        served_bytes: bytes of those files.
        served_refused: requests answered 503.
        served_unauthorized: requests answered 401.
        sends: number of chunks that are being sent now.
    """

    served_requests: int = 0
    served_bytes: int = 0
    served_refused: int = 0
    served_unauthorized: int = 0
    sends: int = 0


ToServer: TypeAlias = ServerStart | ServerAnswer | Leave
ToEngine: TypeAlias = ServerQuestion | Counts

encode: Callable[[ToServer | ToEngine], bytes] = msgspec.msgpack.Encoder().encode
# Both decoders raise msgspec.MsgspecError for anything but their messages.
decode_to_server: Callable[[bytes], ToServer] = msgspec.msgpack.Decoder(ToServer).decode
decode_to_engine: Callable[[bytes], ToEngine] = msgspec.msgpack.Decoder(ToEngine).decode
