"""Turns bytes of the socket between client and engine into messages, and messages into bytes; without the socket.

A frame is a big-endian uint32 length and that many bytes of msgpack. The decoder refuses a frame that is too long by
its length, before its bytes have come. Used by `client/connection.py`, `service/client_connection.py` and
`service/server.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Generic, NamedTuple, TypeVar

import msgspec

from streamer.errors import ConfigError, Discreet, ProtocolError, ProtocolVersionError, describe_undecodable
from streamer.wire.messages import PROTOCOL, Event, Message, Request, ShareCache
from streamer.wire.store_options import StoreOptions

_LENGTH = struct.Struct(">I")

# A schedule of 200,000 chunks has 4.8 MB at most; longer ones are sent in several frames.
MAX_REQUEST_BYTES = 8 << 20
# A Hello has a name of a job and a token; its sender is not admitted yet.
MAX_HELLO_BYTES = 64 << 10
# Room for a `Content` of 64 MiB.
MAX_EVENT_BYTES = 65 << 20
# Limit of `readers` and `former` in a ShareCache. The largest job, of 32,767 lanes and 4,096 engines, has 36,863
# readers of 9 bytes at most, and for each lane 2 former holders of 13 bytes at most. Decoding 4.6 MB of such lists took
# 0.3 s.
_MAX_SHARES_BYTES = 5 << 18
# Values for the required fields that are not read from a greeting of another version, by tag: of Hello (1) and of
# Welcome (64).
_GREETINGS = {1: (), 64: ("", "")}


def _encode_options(value: object) -> object:
    if isinstance(value, StoreOptions):
        return value.encoded
    raise NotImplementedError(f"{type(value).__name__} does not travel")


def _decode_options(kind: type, value: object) -> object:
    if kind is StoreOptions and isinstance(value, bytes):
        return StoreOptions(value)
    raise ValueError(f"Expected `bytes`, got `{type(value).__name__}`")


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_options)

M = TypeVar("M")


def encode(message: Message) -> bytes:
    """Returns a message as one frame.

    Texts of an event that are not UTF-8, as the names of files in an error, are sent with escapes.

    Raises:
        ConfigError: a url or another text of a request is not UTF-8.
    """
    try:
        body = _encoder.encode(message)
    except UnicodeEncodeError as error:
        if not isinstance(message, Event):
            raise ConfigError(
                f"{describe_undecodable(error.object)}, and cannot be sent to the engine; rename it, or name the "
                "folder above it by a pattern (*)",
                field="urls",
            ) from error
        body = _encoder.encode(_escape(msgspec.to_builtins(message, builtin_types=(bytes, bytearray, memoryview))))
    return _LENGTH.pack(len(body)) + body


def _escape(value: object) -> object:
    """Returns a copy of plain values in which each text is UTF-8; other letters become escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list | tuple):
        return [_escape(item) for item in value]
    if isinstance(value, dict):
        return {_escape(name): _escape(item) for name, item in value.items()}
    return value


class FrameDecoder(Generic[M]):
    """Cuts a stream of bytes into messages. Each end of a connection has one, for what it receives; no I/O.

    Args:
        decoder: decodes the body of a frame to a message of this direction.
        max_bytes: length of the longest frame that is taken.
        check: is given each body before it is decoded; raises ProtocolError to refuse it.
    """

    def __init__(
        self,
        decoder: msgspec.msgpack.Decoder[M],
        max_bytes: int,
        check: Callable[[bytes], None] = lambda body: None,
    ) -> None:
        self._decoder = decoder
        self._max_bytes = max_bytes
        self._check = check
        self._buffer = bytearray()

    def __repr__(self) -> str:
        return f"FrameDecoder(buffered_bytes={len(self._buffer)}, max_bytes={self._max_bytes})"

    @property
    def buffered_bytes(self) -> int:
        """Number of received bytes of the frame that is not complete yet."""
        return len(self._buffer)

    def allow(self, max_bytes: int) -> None:
        """Sets the length in bytes of the longest frame that is taken from now on."""
        self._max_bytes = max_bytes

    def feed(self, received: bytes | bytearray | memoryview) -> Iterator[M]:
        """Takes received bytes and yields the messages that are complete.

        It is a generator: nothing is taken before the first message is asked for, and each is decoded when it is asked
        for.

        Raises:
            ProtocolError: a frame is too long, is not msgpack, or is not a message of this direction.
        """
        self._buffer += received
        while len(self._buffer) >= _LENGTH.size:
            length: int = _LENGTH.unpack_from(self._buffer)[0]
            if length > self._max_bytes:
                raise ProtocolError(
                    f"a frame of {length} bytes exceeds the limit of {self._max_bytes}; "
                    "the peer does not speak streamer's protocol",
                    length=length,
                    limit=self._max_bytes,
                )
            if len(self._buffer) < _LENGTH.size + length:
                return
            body = bytes(memoryview(self._buffer)[_LENGTH.size : _LENGTH.size + length])
            del self._buffer[: _LENGTH.size + length]
            yield self._decode(body)

    def _decode(self, body: bytes) -> M:
        """Returns the message; a greeting of another version becomes a Hello or Welcome whose other fields are empty.

        Raises:
            ProtocolError: `check` refuses the body, or it is no message of this direction.
        """
        self._check(body)
        try:
            return self._decoder.decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            with suppress(msgspec.DecodeError):  # a message of the other direction
                if (greeting := read_foreign_greeting(body)) is not None:
                    return self._decoder.decode(_encoder.encode(greeting))
            raise ProtocolError(f"a frame of {len(body)} bytes is not a message: {error}") from error


def request_decoder() -> FrameDecoder[Request]:
    """Returns a decoder of the frames that a client sends."""
    return FrameDecoder(msgspec.msgpack.Decoder(Request, dec_hook=_decode_options), MAX_REQUEST_BYTES, _check_shares)


class _SharesOfLanes(Discreet, msgspec.Struct, array_like=True, frozen=True):
    """Cuts a body into the fields of a ShareCache, undecoded; in other messages these places hold other fields."""

    tag: msgspec.Raw = msgspec.Raw(b"")
    request: msgspec.Raw = msgspec.Raw(b"")
    dataset: msgspec.Raw = msgspec.Raw(b"")
    token: msgspec.Raw = msgspec.Raw(b"")
    host: msgspec.Raw = msgspec.Raw(b"")
    sharers: msgspec.Raw = msgspec.Raw(b"")
    name: msgspec.Raw = msgspec.Raw(b"")
    lanes: msgspec.Raw = msgspec.Raw(b"")
    readers: msgspec.Raw = msgspec.Raw(b"")
    former: msgspec.Raw = msgspec.Raw(b"")


_shares_decoder = msgspec.msgpack.Decoder(_SharesOfLanes)
_tag_decoder = msgspec.msgpack.Decoder(int)


def _check_shares(body: bytes) -> None:
    """Refuses a ShareCache with more readers than any job has, before millions of objects are made of them.

    Raises:
        ProtocolError: readers and former holders take more than `_MAX_SHARES_BYTES`.
    """
    if len(body) <= _MAX_SHARES_BYTES:
        return
    try:
        found = _shares_decoder.decode(body)
        if _tag_decoder.decode(found.tag) != ShareCache.__struct_config__.tag:
            return
    except (ValueError, RecursionError):  # it is refused when it is decoded as a message
        return
    size = len(memoryview(found.readers)) + len(memoryview(found.former))
    if size > _MAX_SHARES_BYTES:
        raise ProtocolError(
            f"the readers of shared caches take {size:,} bytes; at most {_MAX_SHARES_BYTES:,} are possible",
            length=size,
            limit=_MAX_SHARES_BYTES,
        )


def event_decoder() -> FrameDecoder[Event]:
    """Returns a decoder of the frames that the engine sends."""
    return FrameDecoder(msgspec.msgpack.Decoder(Event), MAX_EVENT_BYTES)


class Side(NamedTuple):
    """Names the versions of one end of a connection: that of the protocol, and that of the package."""

    protocol: int
    version: str


class _Greeting(msgspec.Struct, array_like=True, frozen=True):
    """Names the fields that are read from a greeting whose further fields are not those of this version."""

    tag: int
    protocol: int
    version: str
    pid: int = 0


def read_foreign_greeting(body: bytes) -> list[object] | None:
    """Reads a Hello or Welcome of another version of the protocol, as far as this version can.

    Returns its tag and then the required fields of this version's Hello or Welcome, where those that another version
    may not have are empty. Returns None if the body is no greeting, or one of this version.
    """
    try:
        found = msgspec.msgpack.decode(body, type=_Greeting)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    if found.tag not in _GREETINGS or found.protocol == PROTOCOL:
        return None
    return [found.tag, found.protocol, found.version, found.pid, *_GREETINGS[found.tag]]


def version_error(engine: Side, client: Side) -> ProtocolVersionError:
    """Returns the error of a connection between two versions; it tells the user to restart the older end."""
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
