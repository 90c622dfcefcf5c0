"""Defines what peers say to each other over HTTP, version 1.

`peers/client.py` asks and `peers/server.py` answers, both with the functions of this module.

    GET /v1/peer                                           200 PeerFacts as JSON
    GET /v1/chunks/<key>?dataset=<digest>[&wait=1][&held=1]
        Streamer-Member: <id>    Streamer-Due-Ms: <milliseconds until a reader needs it>
        200 the chunk file      202 not yet: ask again with wait=1     404 fetch it yourself
    GET /v1/manifests/<digest>/<file>                      200 a file of a manifest   404 it is not here
    always
        400 not such a request   401 no token, or another one   405 another method   503 busy or leaving

A chunk file is sent whole, as it is on the disk: the key in its name stands for its content, its header has key and
lengths, and its table the checksums of the samples. There are no ranges, because a part of a chunk is useless. The
length of a recoded chunk is not known before the answer.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

PROTOCOL: Final = 1
PEER_PATH: Final = "/v1/peer"
CHUNK_PATH: Final = "/v1/chunks/"
MEMBER_HEADER: Final = "Streamer-Member"
DUE_HEADER: Final = "Streamer-Due-Ms"
MANIFEST_PATH: Final = "/v1/manifests/"
BEARER: Final = "Bearer "
# A request with wait=1 waits at most this long for the fetch, and for its turn. The client waits longer by as much.
WAIT_SECONDS: Final = 0.5

_KEY = re.compile(r"[0-9a-f]{32}")
_MANIFEST_FILE = re.compile(rf"{MANIFEST_PATH}([0-9a-f]{{1,128}})/(root\.json|[a-z]+-[0-9]{{5,9}}\.arrows)")
_DIGEST = re.compile(r"[0-9a-f]{1,128}")


class PeerFacts(msgspec.Struct, frozen=True):
    """Describes an engine to its peers, as it answers them.

    Attributes:
        id: id of its cache folder. An engine that comes back with its disk is the same member.
        instance: id of this run of the engine. Two addresses with equal `id` and `instance` are those of one engine.
            With equal `id` only, one engine has a copy of the other's disk.
        limit_bytes: limit of its cache.
        placement: version of the rule by which chunks have homes (`homes.PLACEMENT`).
        version: version of streamer.
        protocol: version of this protocol.
    """

    id: str
    instance: str
    limit_bytes: int
    placement: int
    version: str
    protocol: int = PROTOCOL


class ChunkRequest(msgspec.Struct, frozen=True, array_like=True):
    """Describes a peer's request for a chunk.

    Attributes:
        key: key of the chunk, 16 bytes.
        dataset: digest of the dataset's manifest.
        member: id of the peer, as it names itself; its address if it names none.
        wait: whether to wait for the chunk, and for its turn to be sent, at most `WAIT_SECONDS` each. Otherwise a chunk
            that is being fetched is answered 202.
        held: whether to send the chunk only if it is on the disk, and not to fetch it.
        due_seconds: seconds until the peer's first reader needs it.
    """

    key: bytes
    dataset: str
    member: str
    wait: bool = False
    held: bool = False
    due_seconds: float = 0.0


def chunk_path(key: bytes, dataset: str, *, wait: bool, held: bool) -> str:
    """Returns path and query of the url that asks for a chunk; for the arguments see `ChunkRequest`."""
    return f"{CHUNK_PATH}{key.hex()}?dataset={dataset}" + "&wait=1" * wait + "&held=1" * held


def parse_key(path: str) -> bytes | None:
    """Returns the key in the path (without query) that asks for a chunk; None for any other path."""
    name = path.removeprefix(CHUNK_PATH)
    return bytes.fromhex(name) if path.startswith(CHUNK_PATH) and _KEY.fullmatch(name) else None


def parse_manifest_file(path: str) -> tuple[str, str] | None:
    """Returns the digest and the file's name in the path that asks for a manifest's file; None for any other path."""
    found = _MANIFEST_FILE.fullmatch(path)
    return (found[1], found[2]) if found is not None else None


def is_digest(text: str) -> bool:
    """Whether a text has the form of a manifest's digest."""
    return _DIGEST.fullmatch(text) is not None
