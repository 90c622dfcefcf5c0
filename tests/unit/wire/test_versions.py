"""Greetings between client and engine of neighbouring versions: what is decoded, and which side to restart."""

from __future__ import annotations

import struct

import msgspec
import pytest

from streamer.errors import ProtocolError
from streamer.wire.frames import Side, event_decoder, request_decoder, version_error
from streamer.wire.messages import PROTOCOL, Hello, Welcome


def frame(*fields: object) -> bytes:
    """Returns the frame of a message with these fields, the tag first."""
    body = msgspec.msgpack.encode(fields)
    return struct.pack(">I", len(body)) + body


@pytest.mark.parametrize("more", [(), ("a field",), (7, {"of": "a later"}, ["version"], None)])
def test_a_greeting_of_another_protocol_is_read(more: tuple[object, ...]) -> None:
    """A greeting of another protocol version is decoded whatever its other fields are, to compare the versions."""
    (hello,) = request_decoder().feed(frame(1, PROTOCOL + 1, "0.9.0", 42, *more))
    assert (hello.protocol, hello.version, hello.pid, type(hello)) == (PROTOCOL + 1, "0.9.0", 42, Hello)
    (welcome,) = event_decoder().feed(frame(64, PROTOCOL + 1, "0.9.0", 42, *more))
    assert (welcome.protocol, welcome.version, type(welcome)) == (PROTOCOL + 1, "0.9.0", Welcome)


@pytest.mark.parametrize(
    "fields",
    [
        (1, PROTOCOL, "0.9.0", 42, "job", "token", "one too many"),
        (1, -1, "0.9.0", 42, "one too many", 1, 2, 3),
        (1, PROTOCOL + 1),
        (1, "3", "0.9.0", 42),
        (64, PROTOCOL + 1, "0.9.0", 42, "to the wrong side"),
        (5, PROTOCOL + 1, "0.9.0", 42, "no greeting", 1, 2),
        (99, PROTOCOL + 1, "0.9.0", 42),
    ],
)
def test_nothing_else_is_let_through(fields: tuple[object, ...]) -> None:
    """Only a greeting is decoded from another protocol version, and a greeting of this version has exact fields."""
    with pytest.raises(ProtocolError, match="is not a message"):
        list(request_decoder().feed(frame(*fields)))


def test_the_older_side_is_to_be_restarted() -> None:
    """The version error says to restart the older side, and with which version of streamer."""
    older_engine = version_error(Side(2, "0.1.0"), Side(3, "0.2.0"))
    assert "restart the engine with streamer 0.2.0" in str(older_engine)
    older_client = version_error(Side(4, "0.3.0"), Side(3, "0.2.0"))
    assert "restart this program with streamer 0.3.0, from its saved state" in str(older_client)
    assert older_client.details == {"engine": 4, "client": 3}
