"""Frames of the protocol: bytes of any kind decode to a message or end in a ProtocolError."""

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.errors import ConfigError, ProtocolError
from streamer.wire import frames
from streamer.wire.messages import Advance, Extend, Failed, GetManifest, Hello, Ready, Reject, ShareCache, Statistics

MESSAGES = [
    Hello(1, "0.1", 3, "job"),
    Extend(1, 0, b"abcd", b"12345678", b"12345678", complete=False),
    Advance(1, 3, -1),
    Reject(1, 7, "torn"),
]


@pytest.mark.parametrize("size", [1, 3, 7, pytest.param(1 << 20, id="whole")])
def test_messages_survive_the_wire_in_pieces_of_any_size(size: int):
    """The decoder gives the same messages in the same order, into whatever pieces the kernel cuts the stream."""
    stream = b"".join(map(frames.encode, MESSAGES))
    decoder = frames.request_decoder()
    pieces = [stream[i : i + size] for i in range(0, len(stream), size)]
    assert [message for piece in pieces for message in decoder.feed(piece)] == MESSAGES


def test_events_survive_the_wire():
    """Events decode to what was encoded, nested statistics and details of errors included."""
    sent = [
        Statistics(1, {"needs": 3, "sessions": [{"done": 4}]}),
        Failed("StoreError", "no", {"a": 1}),
        Ready(1, 5, 2),
    ]
    assert list(frames.event_decoder().feed(b"".join(map(frames.encode, sent)))) == sent


def test_a_long_frame_is_refused_before_it_is_stored():
    """A frame whose header announces more bytes than the limit is refused before its body arrives."""
    decoder = frames.request_decoder()
    with pytest.raises(ProtocolError, match="exceeds the limit"):
        list(decoder.feed(struct.pack(">I", frames.MAX_REQUEST_BYTES + 1)))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello",
        msgspec.msgpack.encode([99]),
        msgspec.msgpack.encode([5, 1, "done", 2]),
        msgspec.msgpack.encode([5, 1, -2, 2]),
        msgspec.msgpack.encode([5, 1]),
        b"\xdd\xff\xff\xff\xff",
    ],
)
def test_what_is_no_message_is_a_protocol_error(body):
    """A frame whose body is of a wrong type, has an unknown tag or a number out of range is a ProtocolError."""
    with pytest.raises(ProtocolError, match="is not a message"):
        list(frames.request_decoder().feed(struct.pack(">I", len(body)) + body))


@given(st.lists(st.binary(max_size=64), max_size=8))
def test_any_bytes_end_in_a_message_or_a_protocol_error(pieces):
    """The decoder raises no error but ProtocolError, whatever bytes it is fed."""
    decoder = frames.request_decoder()
    try:
        for piece in pieces:
            list(decoder.feed(piece))
    except ProtocolError:
        return
    assert "buffered_bytes" in repr(decoder)


def test_names_that_are_not_utf_8() -> None:
    """An event replaces bytes that are not UTF-8 by escapes; a request that has some is refused before it is sent."""
    frame = frames.encode(Failed("StoreError", "/d/\udcff is missing", {"url": "/d/\udcff", "size": 3}))
    (event,) = frames.event_decoder().feed(frame)
    assert event == Failed("StoreError", "/d/\\udcff is missing", {"url": "/d/\\udcff", "size": 3})
    with pytest.raises(ConfigError, match=r"'/d/\\udcff' is not UTF-8, and cannot be sent"):
        frames.encode(GetManifest(1, ["/d/\udcff"], "auto"))


def test_more_readers_than_a_job_has_are_refused_before_they_are_made() -> None:
    """The readers of shared caches may be 32,767 lanes by 4,096 engines; more are refused before they are decoded."""
    readers = [[(lane % 4096, 70_000)] for lane in range(32_767)]
    readers[0] += [(engine, 70_000) for engine in range(4096)]
    former = [[(1, 1 << 40), (4095, 1 << 40)] for _ in range(32_767)]
    largest = ShareCache(1, "d", "t", "host", [], "n", b"\0" * 3_000_000, readers, former)
    assert next(frames.request_decoder().feed(frames.encode(largest))) == largest
    for field in ("readers", "former"):
        many = msgspec.structs.replace(largest, lanes=b"", **{field: [[(1, 1)] * 300] * 4000})
        with pytest.raises(ProtocolError, match="the readers of shared caches take"):
            next(frames.request_decoder().feed(frames.encode(many)))
    # The tag in another encoding of the same number.
    body = frames.encode(many)[4:]
    assert body[1] == 11
    body = body[:1] + b"\xcc" + body[1:]
    with pytest.raises(ProtocolError, match="the readers of shared caches take"):
        next(frames.request_decoder().feed(struct.pack(">I", len(body)) + body))
