"""Where the fragments of an mp4 are: with an index of them in four rounds of requests, without one in few; if it is
wrong, too. Files are made of boxes here, or by FFmpeg."""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence

import numpy as np
import pytest

from streamer.formats.failures import DamagedError
from streamer.media.containers.boxes import header
from tests.videos import index_of, made

FRAGMENTS, LONG = 300, 1400
# Of a fragment, before its packets, without their sizes.
HEAD_BYTES = 96
Ranges = list[list[tuple[int, int]]]


def box(kind: bytes, *bodies: bytes) -> bytes:
    body = b"".join(bodies)
    return struct.pack(">I4s", 8 + len(body), kind) + body


@functools.cache
def before() -> bytes:
    """Returns what a file of fragments begins with, up to the end of moov."""
    content = made("fragments.mp4")
    _, _, length = header(content, 28, len(content))
    assert content[32:36] == b"moov"
    return content[: 28 + length]


def fragments(lengths: Sequence[int], packets: int = 1) -> list[bytes]:
    """Makes fragments whose first packets have these lengths, behind which there are `packets` - 1 of no bytes."""
    made = []
    for number, length in enumerate(lengths):
        sizes = struct.pack(f">{packets}I", length, *[0] * (packets - 1))
        head = box(b"tfhd", struct.pack(">III", 0x20008, 1, 1)), box(b"tfdt", struct.pack(">II", 0, number * packets))
        run = struct.pack(">IIi", 0x201, packets, HEAD_BYTES + len(sizes)) + sizes
        moof = box(b"moof", box(b"mfhd", bytes(8)), box(b"traf", *head, box(b"trun", run)))
        made.append(moof + box(b"mdat", bytes(length)))
    return made


def lengths_of(count: int = FRAGMENTS, mean: int = 72_000) -> list[int]:
    return (mean + np.random.default_rng(0).integers(-500, 30_000, count)).tolist()


def sidx(sizes: Sequence[int], first: int = 0, kind: int = 0) -> bytes:
    """Makes the places of subsegments of these lengths, `first` bytes behind this box; `kind` 1: of other boxes."""
    rows = b"".join(struct.pack(">III", kind << 31 | size, 1, 0) for size in sizes)
    return box(b"sidx", struct.pack(">IIIIIHH", 0, 1, 30, 0, first, 0, len(sizes)), rows)


def mfra(places: Sequence[int]) -> bytes:
    rows = b"".join(struct.pack(">QQBBB", number, place, 1, 1, 1) for number, place in enumerate(places))
    tfra = box(b"tfra", struct.pack(">IIII", 1 << 24, 1, 0, len(places)), rows)
    return box(b"mfra", tfra, box(b"mfro", struct.pack(">II", 0, 8 + len(tfra) + 16)))


def places_of(start: int, found: Sequence[bytes]) -> list[int]:
    return (start + np.cumsum([0, *map(len, found)])).tolist()


def read(content: bytes, packets: int = 1) -> tuple[list[int], Ranges]:
    """Returns the places of fragments, by those of their first packets, and the ranges that were read."""
    movie, asked = index_of(content)
    first = movie.packets(movie.tracks[0]).offset[::packets]
    return (first - HEAD_BYTES - 4 * packets).tolist(), asked


def requests(asked: Ranges) -> int:
    return sum(map(len, asked))


def read_bytes(asked: Ranges) -> int:
    return sum(stop - start for ranges in asked for start, stop in ranges)


def test_an_index_at_the_beginning():
    """A sidx at the beginning gives all fragments in three rounds of requests, or four where their heads are long."""
    made = fragments(lengths_of())
    content = before() + sidx(list(map(len, made))) + b"".join(made)
    found, asked = read(content)
    assert found == places_of(len(content) - sum(map(len, made)), made)[:-1]
    assert len(asked) == 3
    assert requests(asked) <= FRAGMENTS + 3
    assert read_bytes(asked) < 4200 * (FRAGMENTS + 2)
    long = fragments(lengths_of(), LONG)
    found, asked = read(before() + sidx(list(map(len, long))) + b"".join(long), LONG)
    assert len(found) == FRAGMENTS
    assert len(asked) == 4


def test_an_index_of_indexes():
    """A sidx that refers to others gives all fragments in at most four rounds, with several fragments in a segment."""
    made = fragments(lengths_of())
    parts = [made[first : first + 100] for first in range(0, FRAGMENTS, 100)]
    segments = [
        sidx([len(one) + len(other) for one, other in zip(part[::2], part[1::2], strict=True)]) for part in parts
    ]
    segments = [head + b"".join(part) for head, part in zip(segments, parts, strict=True)]
    content = before() + sidx(list(map(len, segments)), kind=1) + b"".join(segments)
    found, asked = read(content)
    assert len(found) == FRAGMENTS
    assert len(asked) <= 4


@pytest.mark.parametrize("long", [False, True])
def test_an_index_at_the_end(long: bool):
    """An mfra at the end gives all fragments in at most four rounds of requests."""
    made = fragments(lengths_of(), packets := LONG if long else 1)
    places = places_of(len(before()), made)
    found, asked = read(before() + b"".join(made) + mfra(places[:-1]), packets)
    assert found == places[:-1]
    assert len(asked) <= 4
    assert requests(asked) <= FRAGMENTS * (1 + long) + 4


@pytest.mark.parametrize(("name", "rounds"), [("fragments.mp4", 2), ("indexed.mp4", 2), ("dash.mp4", 2)])
def test_indexes_that_ffmpeg_writes(name, rounds):
    """Files of FFmpeg with an index at their end, or for DASH at the beginning, are indexed in two rounds."""
    movie, asked = index_of(content := made(name))
    assert len(movie.packets(movie.tracks[0])) == 90
    assert len(asked) <= rounds
    assert read_bytes(asked) < len(content) + 8192


@pytest.mark.parametrize("index", ["sidx", "mfra"])
def test_an_index_that_is_wrong(index: str):
    """A wrong index of fragments costs requests and gives the same fragments; a file that is cut off is an error."""
    made = fragments(lengths_of(40))
    wrong = [len(fragment) + 9 for fragment in made[:-1]] + [1 << 20]
    if index == "sidx":
        content = before() + sidx(wrong) + b"".join(made)
        expected = places_of(len(before() + sidx(wrong)), made)
    else:
        expected = places_of(len(before()), made)
        content = before() + b"".join(made) + mfra([place + 13 for place in expected] + [1 << 40])
    found, asked = read(content)
    assert found == expected[:-1]
    assert len(asked) > 4
    short = before() + sidx([1 << 30]) + b"".join(made)
    assert len(read(short)[0]) == 40
    with pytest.raises(DamagedError, match=r"cut off: mdat goes from byte \d+ to \d+, the file has \d+ bytes"):
        read(content[: expected[-2] + 3000])


def test_a_file_without_an_index():
    """A file without an index is walked from several places at once, in under 100 rounds and a tenth of its bytes."""
    made = fragments(lengths_of(650))
    content = bytearray(before() + b"".join(made))
    places = places_of(len(before()), made)
    found, asked = read(content)
    assert found == places[:-1]
    assert len(asked) < 100
    assert read_bytes(asked) < 0.1 * len(content)
    # What looks like the beginning of a fragment, inside of others.
    for place in places[300:360]:
        for inside in range(place + 300, place + 70_000, 1000):
            content[inside : inside + 16] = b"\0\0\0\x40moof\0\0\0\x10mfhd"
    assert read(content)[0] == found


def test_fragments_of_a_frame():
    """Several fragments of one frame are read at once: a request for each would take longer than their bytes."""
    made = fragments(lengths_of(1000, 3000))
    content = before() + b"".join(made)
    found, asked = read(content)
    assert found == places_of(len(before()), made)[:-1]
    assert len(asked) < 100
