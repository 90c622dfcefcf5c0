"""Frames for the fuzzers: messages with odd values, broken frames, noise. Not a test; found by path."""

from __future__ import annotations

import random
import struct

import msgspec
import numpy as np

from streamer.wire.frames import encode
from streamer.wire.messages import (
    PROTOCOL,
    Advance,
    CloseSession,
    Extend,
    GetManifest,
    GetStatistics,
    Hello,
    Message,
    OpenSession,
    PackedRows,
    Part,
    Read,
    Reject,
    ReportError,
    ReportFinding,
    ShareCache,
)
from streamer.wire.store_options import StoreOptions

ODD_NUMBERS = (0, 1, 2, 7, 255, 2**31 - 1, 2**32, 2**53, 2**62)
ODD_TEXTS = ("", "a", "../../etc", "0" * 32, "\x00", "\x1b[2J", "ü" * 50, "x" * 4096)


def message(drawn: random.Random, datasets: tuple[str, ...]) -> Message:
    """Makes one message that the types allow; its values may mean nothing."""
    number, text = lambda: drawn.choice(ODD_NUMBERS), lambda: drawn.choice(ODD_TEXTS)
    session, dataset = drawn.randrange(4), drawn.choice((*datasets, *datasets, text()))
    return drawn.choice(
        (
            lambda: Hello(PROTOCOL, text(), number(), text(), text()),
            lambda: OpenSession(session, text(), dataset, text(), options(drawn)),
            lambda: OpenSession(
                session, text(), text(), text(), parts=tuple(part(drawn, dataset) for _ in range(number() % 4))
            ),
            lambda: extend(drawn, session),
            lambda: extend(drawn, session),
            lambda: Advance(session, number(), drawn.choice((-1, *ODD_NUMBERS))),
            lambda: Reject(session, drawn.randrange(8), text()),
            lambda: CloseSession(session),
            lambda: Read(number(), dataset, drawn.randrange(8), number(), number()),
            lambda: GetManifest(number(), [text() or "/"], text(), manifest="", wait_seconds=0.0),
            lambda: GetStatistics(number()),
            lambda: ShareCache(number(), dataset, text()[:256], text(), lanes=drawn.randbytes(3), readers=[[(1, 2)]]),
            lambda: ReportError(text(), dataset, text(), text()[:1200]),
            lambda: ReportFinding(text(), dataset, text(), drawn.random(), text()[:64], text()[:240]),
            lambda: ReportFinding(text(), dataset, text(), 0.0, "", "", PackedRows(drawn.random(), 9.0, number(), 1)),
        )
    )()


def extend(drawn: random.Random, session: int) -> Extend:
    """Draws a schedule, mostly one that could be."""
    count = drawn.randrange(6)
    first = np.sort(np.array([drawn.randrange(50) for _ in range(count)], "<i8"))
    last = first + drawn.randrange(-1, 4)
    chunk = np.array([drawn.randrange(8 if drawn.random() < 0.9 else 2**32) for _ in range(count)], "<u4")
    cut = drawn.choice((0, 0, 0, 0, 1))
    raw = chunk.tobytes()[: len(chunk.tobytes()) - cut]
    passes = np.array([drawn.choice((0, 0, 1, 2**32 - 1)) for _ in range(count)], "<u4").tobytes()
    return Extend(
        session,
        drawn.randrange(3),
        raw,
        first.tobytes(),
        last.astype("<i8").tobytes(),
        drawn.random() < 0.8,
        drawn.choice((b"", passes, passes, passes[:-1])),
        drawn.choice(([], [], [1.0, 0.5], [0.0, 0.0, 2.0])),
    )


def options(drawn: random.Random) -> StoreOptions:
    """Draws storage options, and what is none."""
    return StoreOptions(drawn.choice((b"{}", b"[", b"3", b"\xff")))


def part(drawn: random.Random, dataset: str) -> Part:
    """Draws a part of a session, mostly of a dataset that exists."""
    value = drawn.choice((0.0, 1e-300, 1.0, 2.0**32))
    return Part(dataset, drawn.choice(ODD_TEXTS), StoreOptions() if drawn.random() < 0.7 else options(drawn), value, 7)


def frame(drawn: random.Random, datasets: tuple[str, ...] = ("0" * 32,)) -> bytes:
    """Draws one frame: most are whole messages, some have a changed byte, some are noise or lie about their length."""
    kind = drawn.random()
    if kind < 0.03:
        return drawn.randbytes(drawn.randrange(1, 40))
    if kind < 0.05:
        return struct.pack(">I", drawn.choice((0, 2**32 - 1, 8 << 20, (8 << 20) + 1, 3))) + drawn.randbytes(3)
    if kind < 0.08:
        body = msgspec.msgpack.encode([drawn.randrange(90), *[drawn.choice(ODD_TEXTS)] * drawn.randrange(4)])
        return struct.pack(">I", len(body)) + body
    raw = bytearray(encode(message(drawn, datasets)))
    if kind < 0.2:
        raw[drawn.randrange(len(raw))] = drawn.randrange(256)
    return bytes(raw)
