"""Broken tars, by random changes of bytes: indexed and opened, or refused with a documented error, in finite time."""

from __future__ import annotations

import contextlib
import random
import tarfile

import pytest

from streamer.errors import DecodeError, ManifestError
from streamer.formats.base import Facts, Need, SampleName, Source
from streamer.formats.webdataset import WebDataset
from streamer.manifest.model import ObjectRecord
from tests.tars import tar_of

FORMAT = WebDataset()


def seeds() -> list[bytes]:
    entries = [(name, bytes(600)) for name in ("a.jpg", "a.cls", "d/" * 30 + "b" * 30 + ".jpg", "ü.txt")]
    kinds = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
    return [tar_of(entries, kind)[: 16 * 512] for kind in kinds]


def mutated(raw: bytes, drawn: random.Random) -> bytes:
    """Changes a few bytes, most of them in headers, whose checksums are then often repaired."""
    out = bytearray(raw)
    for _ in range(drawn.randint(1, 4)):
        block = drawn.randrange(len(out) // 512) * 512
        field, length = drawn.choice([(0, 100), (124, 12), (156, 1), (257, 8), (345, 155), (0, 512)])
        for _ in range(drawn.randint(1, 6)):
            out[block + field + drawn.randrange(length)] = drawn.choice(
                [0, 0x20, 0x30, 0x37, 0x80, 0xFF, drawn.randrange(256)]
            )
        if drawn.random() < 0.8:
            out[block + 148 : block + 156] = b" " * 8
            out[block + 148 : block + 156] = b"%06o\0 " % sum(out[block : block + 512])
    return bytes(out[: drawn.randrange(len(out))]) if drawn.random() < 0.1 else bytes(out)


def walk(raw: bytes) -> None:
    """Indexes an archive as an engine does, and checks that needs and samples lie within it."""
    steps = FORMAT.index(Source(ObjectRecord("s3://b/x.tar", len(raw), "")), Facts())
    answer: memoryview | None = None
    last = 0
    with contextlib.suppress(StopIteration):
        while True:
            item = steps.send(answer)
            answer = None
            assert 0 <= item.start < item.stop <= len(raw) + 511
            if isinstance(item, Need):
                assert item.start >= last
                last = item.stop
                answer = memoryview(raw)[item.start : item.stop]


@pytest.mark.parametrize("seed", range(4))
def test_indexing(seed):
    """The index of 4,000 broken archives gives samples within the object, or a ManifestError with an offset in it."""
    drawn = random.Random(seed)
    offsets = []
    archives = seeds()
    for _ in range(1000):
        raw = mutated(drawn.choice(archives), drawn)
        try:
            walk(raw)
        except ManifestError as error:
            offsets.append((error.details["offset"], len(raw)))
    assert 100 < len(offsets) < 1000
    assert all(0 <= offset <= length + 511 for offset, length in offsets)


@pytest.mark.parametrize("seed", range(4))
def test_opening(seed):
    """Opening 4,000 broken samples gives fields within the bytes, or a DecodeError."""
    drawn = random.Random(seed)
    refused = 0
    samples = [raw[: 4 * 512] for raw in seeds()]
    for _ in range(1000):
        raw = mutated(drawn.choice(samples), drawn)
        try:
            _, fields = FORMAT.open(memoryview(raw), SampleName())
            assert sum(len(field.content) for field in fields) <= len(raw)
        except DecodeError:
            refused += 1
    assert 100 < refused < 1000
