"""Storage options in messages: their encoding, their key, and the values that are refused."""

from __future__ import annotations

import msgspec
import pytest

from streamer.errors import ConfigError, ProtocolError
from streamer.wire.frames import encode, request_decoder
from streamer.wire.messages import GetManifest, OpenSession, Part, Read, ShareCache
from streamer.wire.store_options import NO_OPTIONS, StoreOptions

KEYS = StoreOptions.make({"secret": "hunter2", "key": "K"})


@pytest.mark.parametrize(
    "message",
    [
        GetManifest(1, ["s3://b/"], "auto", KEYS),
        OpenSession(1, "job", "digest", "rank 0", KEYS, parts=(Part("digest", "a", KEYS),)),
        Read(1, "digest", 0, 0, 9, KEYS),
        ShareCache(1, "digest", "token", "host", options=KEYS),
    ],
)
def test_options_travel_as_their_text(message):
    """Storage options travel as bytes of JSON, are parsed only by the part that uses them, and are in no repr."""
    (received,) = request_decoder().feed(encode(message))
    assert received == message
    assert received.options.mapping == {"key": "K", "secret": "hunter2"}
    assert encode(received) == encode(msgspec.structs.replace(message, options=KEYS.encoded))
    assert "hunter2" not in repr(received)


def test_equal_options_have_one_key():
    """Storage options that are equal have one key, however their JSON is spelled; empty options are false."""
    assert StoreOptions(b'{"b":1,  "a":2}').key == StoreOptions.make({"a": 2, "b": 1}).key
    assert StoreOptions(b"").key == NO_OPTIONS.key == "{}"
    assert not StoreOptions(b"")
    assert not NO_OPTIONS
    assert KEYS


@pytest.mark.parametrize("encoded", [b"hunter2", b'["hunter2"]', b"\xff", b"[" * 10_000])
def test_what_is_no_mapping_is_refused_where_it_is_read(encoded):
    """Bytes that are no JSON object are refused as storage options by a ConfigError that does not quote them."""
    with pytest.raises(ConfigError, match="storage_options") as caught:
        StoreOptions(encoded).check()
    assert "hunter2" not in str(caught.value)


def test_an_object_does_not_travel():
    """A storage option that is an object is refused, and the error says that plain values are needed."""
    with pytest.raises(ConfigError, match="plain values"):
        StoreOptions.make({"credentials": object()})


@pytest.mark.parametrize("options", ["text", 7, {}])
def test_options_of_another_type_break_the_protocol(options):
    """A message whose storage options are not bytes is a ProtocolError."""
    broken = encode(msgspec.structs.replace(Read(1, "digest", 0, 0, 9), options=options))
    with pytest.raises(ProtocolError, match="Expected `bytes`, got"):
        list(request_decoder().feed(broken))
