"""Damaged videos: indexes, hints and records are read, or refused with a typed error, quickly and in little memory."""

from __future__ import annotations

import functools
import random
import struct
import time
import zlib
from collections.abc import Callable

import msgspec
import pytest

from streamer.decode.dispatch import SampleDecoder
from streamer.errors import ConfigError, DecodeError, ManifestError, RecodeError
from streamer.formats.base import Block, SampleName
from streamer.media.containers.blocks import read_hint
from streamer.media.containers.boxes import header
from streamer.media.video.format import Video
from tests.formats.cases import Found, block_bytes, find, recode
from tests.formats.contract import MAX_BYTES, MOST_SECONDS, more_memory
from tests.videos import made

SILENT = Video(4, num_indices_between_frames=2, num_indices_between_clip_starts=5)
FORMATS = dict.fromkeys(("b_frames.mp4", "sound.mp4", "fragments.mp4", "dash.mp4"), SILENT)
FORMATS["sound.mp4"] = msgspec.structs.replace(SILENT, audio=True)
NAMES = tuple(FORMATS)
# In `make test`, and in `make test-faults`.
TIMES = [pytest.param(120), pytest.param(2000, marks=pytest.mark.slow)]
_EDGES = [struct.pack(">I", number) for number in (0, 1, 2**31 - 1, 2**31, 2**32 - 1)]


def index_places(content: bytes) -> list[int]:
    """Returns the places of all bytes but those of packets."""
    found, at = list[int](), 0
    while at < len(content):
        kind, head, length = header(content, at, len(content) - at)
        found += range(at, at + (head if kind == b"mdat" else length))
        at += length
    return found


def changed(content: bytes, drawn: random.Random, places: list[int] | None = None) -> bytes:
    """Makes one to four changes at these places."""
    out = bytearray(content)
    for _ in range(drawn.choice([1, 1, 2, 4])):
        at = min(drawn.choice(places) if places else drawn.randrange(len(out)), len(out) - 1)
        kind = drawn.random()
        if kind < 0.5:
            out[at] = drawn.choice([0, 1, 127, 128, 255, drawn.randrange(256)])
        elif kind < 0.8:
            out[at : at + 4] = drawn.choice(_EDGES)
        elif kind < 0.9:
            del out[at : at + drawn.randrange(1, 40)]
        else:
            out[at:at] = drawn.randbytes(drawn.randrange(1, 9))
    return bytes(out) or b"\0"


@functools.cache
def block_of(name: str) -> tuple[Block, bytes, list[bytes]]:
    """Returns the first block of a video, its bytes and its records."""
    found = find(FORMATS[name], {name: made(name)})
    block = next(item for _, items in found.items for item in items)
    content = block_bytes(block, made(name))
    return block, content, recode(FORMATS[name], found, block, content)


def refusals(times: int, attempt: Callable[[str, random.Random], None], *allowed: type[Exception]) -> int:
    """Counts how many attempts are refused; each must be quick, and all of them together take little memory."""
    for name in NAMES:
        block_of(name)
    drawn, refused, more = random.Random(0), 0, more_memory()
    for number in range(times):
        begun = time.process_time()
        try:
            attempt(NAMES[number % len(NAMES)], drawn)
        except allowed:
            refused += 1
        assert time.process_time() - begun < MOST_SECONDS
    assert more() < MAX_BYTES
    return refused


@pytest.mark.parametrize("times", TIMES)
def test_indexes(times: int):
    """A damaged index of a video (moov, moof, sidx, mfra) is refused, or what it gives is recoded or refused."""
    places = {name: index_places(made(name)) for name in NAMES}

    def attempt(name: str, drawn: random.Random) -> None:
        content = changed(made(name), drawn, places[name])
        found = find(FORMATS[name], {name: content})
        for _, items in found.items:
            for block in items:
                recode(FORMATS[name], found, block, block_bytes(block, content))

    assert 0.2 * times < refusals(times, attempt, ManifestError, RecodeError) < 0.9 * times


@pytest.mark.parametrize("times", TIMES)
def test_hints(times: int):
    """A damaged hint of a video's recoder, or damaged columns or audio in it, is recoded or a RecodeError."""

    def attempt(name: str, drawn: random.Random) -> None:
        block, content, _ = block_of(name)
        hint, _ = read_hint(block.hint)
        if drawn.random() < 0.7:
            columns = zlib.compress(changed(zlib.decompress(hint.columns), drawn))
            damaged = msgspec.msgpack.encode(msgspec.structs.replace(hint, columns=columns))
        elif hint.audio and drawn.random() < 0.5:
            damaged = msgspec.msgpack.encode(msgspec.structs.replace(hint, audio=changed(hint.audio, drawn)))
        else:
            damaged = changed(block.hint, drawn)
        recode(FORMATS[name], Found(None), msgspec.structs.replace(block, hint=damaged), content)

    assert 0.3 * times < refusals(times, attempt, RecodeError) < times


@pytest.mark.parametrize("times", TIMES)
def test_records(times: int):
    """A damaged record of a video's chunk file is opened and decoded, or refused with a typed error."""
    opener, decoder = SILENT.opener(find(SILENT, {}).survey.facts), SampleDecoder()

    def attempt(name: str, drawn: random.Random) -> None:
        record = drawn.choice(block_of(name)[2])
        edge = min(len(record), 600)
        damaged = changed(record, drawn, list(range(edge)) if drawn.random() < 0.8 else None)
        key, fields = opener.open(memoryview(damaged), SampleName())
        decoder(key, fields)

    # A decoder of another name may be one that this PyAV does not have.
    assert 0.1 * times < refusals(times, attempt, DecodeError, ConfigError) < times
