"""Client and engine of different versions: their greetings can be read, and the error says which one to restart."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from streamer.errors import ProtocolVersionError
from streamer.wire.messages import PROTOCOL

# The first fields of Hello and Welcome, in the same places in every version of the protocol.
_GREETINGS = {1: (), 64: ("", "")}


class Side(NamedTuple):
    """One end of a connection."""

    protocol: int
    version: str


class _Greeting(msgspec.Struct, array_like=True, frozen=True):
    """The fields read from a greeting that has other fields than this version's."""

    tag: int
    protocol: int
    version: str
    pid: int = 0


def foreign_greeting(body: bytes) -> list[object] | None:
    """The fields that this version needs from a greeting of another protocol version; None if it is not a greeting."""
    try:
        found = msgspec.msgpack.decode(body, type=_Greeting)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    if found.tag not in _GREETINGS or found.protocol == PROTOCOL:
        return None
    return [found.tag, found.protocol, found.version, found.pid, *_GREETINGS[found.tag]]


def version_error(engine: Side, client: Side) -> ProtocolVersionError:
    """Returns the error for both ends; the older one has to be restarted."""
    if engine.protocol < client.protocol:
        advice = (
            f"restart the engine with streamer {client.version} (`systemctl restart streamer` for a service; an engine "
            "that a job started ends 3 s after the last process of that job, and another cache_dir has another engine)"
        )
    else:
        advice = f"restart this program with streamer {engine.version}, from its saved state"
    return ProtocolVersionError(
        f"the engine speaks protocol {engine.protocol} (streamer {engine.version}), the client {client.protocol} "
        f"(streamer {client.version}): {advice}",
        engine=engine.protocol,
        client=client.protocol,
    )
