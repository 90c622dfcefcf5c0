"""RecordIO meets the contract of the formats, on files of MXNet's own writer; index files, damage and refusals."""

from __future__ import annotations

import struct

import pytest

from streamer.errors import DecodeError, ManifestError
from streamer.formats.base import Facts, SampleName
from streamer.tables.recordio import MAGIC, RecordIO
from tests.formats.cases import Case, find, read_case
from tests.formats.contract import FormatContract


class TestRecordIO(FormatContract):
    @classmethod
    def cases(cls) -> list[Case]:
        # A record in several parts is put together again.
        copied = ("image", "label")
        return [
            read_case(RecordIO(), "recordio/indexed", raw=["image"], copied=copied),
            read_case(RecordIO(), "recordio/plain", raw=["image"], copied=copied),
        ]


@pytest.fixture
def plain() -> Case:
    return read_case(RecordIO(), "recordio/plain")


@pytest.fixture
def indexed() -> Case:
    return read_case(RecordIO(), "recordio/indexed")


def part(kind: int, content: bytes) -> bytes:
    return struct.pack("<II", MAGIC, kind << 29 | len(content)) + content + bytes(-len(content) % 4)


def test_records_of_one_part_are_views(plain):
    """Label and image of a record of one part are views of its bytes."""
    record = memoryview(part(0, struct.pack("<IfQQff", 2, 0.0, 9, 0, 1.5, 2.5) + b"abc"))
    key, (image, label) = plain.format.opener(Facts()).open(record, SampleName())
    assert (key, bytes(image.content), label.kind) == ("9", b"abc", "<f4[]")
    assert image.content.obj is record.obj
    assert label.content.obj is record.obj


def test_records_without_a_header():
    """With header=False a record of RecordIO is its bytes."""
    _, (record,) = RecordIO(header=False).opener(Facts()).open(memoryview(part(0, b"abc")), SampleName())
    assert (record.name, bytes(record.content)) == ("record", b"abc")


def test_index_files_are_read_instead(indexed):
    """RecordIO's index file is read in place of the records, with the headers of the first and of the last one."""
    found = find(indexed.format, indexed.objects)
    assert [sum(map(len, asks)) for asks in found.needs.values()] == [3, 3]
    plain = find(indexed.format, {name: each for name, each in indexed.objects.items() if name.endswith(".rec")})
    assert [items for _, items in found.items] == [items for _, items in plain.items]


def test_an_index_file_in_any_order(indexed):
    """The lines of RecordIO's index file may have any order."""
    lines = indexed.objects["a.idx"].splitlines(keepends=True)
    found = find(indexed.format, {**indexed.objects, "a.idx": b"".join(reversed(lines))})
    assert [items for _, items in found.items] == [items for _, items in find(indexed.format, indexed.objects).items]


@pytest.mark.parametrize("lines", [b"0\t8\n", b"0\t0\n1\t0\n", b"x\n", b"0\tx\n", b"\n", b"0\t0\n1\t99999999\n"])
def test_an_index_file_of_another_file(indexed, lines):
    """A RecordIO index file whose offsets do not fit, or are none, is refused with what to do."""
    with pytest.raises(ManifestError, match=r"a\.idx is not an index of .*a\.rec .*write it again, or delete it"):
        find(indexed.format, {**indexed.objects, "a.idx": lines})


def test_an_index_file_that_points_into_records(indexed):
    """A RecordIO index file whose last offset is inside a record is refused."""
    with pytest.raises(ManifestError, match="no sample begins at byte 12"):
        find(indexed.format, {**indexed.objects, "a.idx": b"0\t0\n1\t12\n"})


@pytest.mark.parametrize(
    ("content", "reason", "offset"),
    [
        (b"12345678", "magic number is missing", 0),
        (part(0, b"ab") + part(2, b"ab"), "a part of kind 2", 12),
        (part(1, b"ab") + part(0, b"ab"), "a part of kind 0", 12),
        (part(7, b"ab"), "a part of kind 7", 0),
        (part(1, b"ab"), "the last part of a record is missing", 0),
        (part(0, b"abcdefgh")[:-4], "needs 4 more bytes", 0),
        (part(0, b"ab") + b"\0\0", "cut off inside the head of a record, 2 bytes", 12),
    ],
)
def test_damage_is_told_with_its_place(content, reason, offset):
    """A damaged RecordIO file is refused with the reason and its offset, and can be left out."""
    with pytest.raises(ManifestError, match=reason) as caught:
        find(RecordIO(), {"a.rec": content})
    assert caught.value.details["offset"] == offset
    assert "reason" in caught.value.details


@pytest.mark.parametrize(
    "content", [b"", part(0, b"abc"), part(0, struct.pack("<IfQQ", 9, 0, 0, 0)), part(1, b"a" * 24)]
)
def test_what_is_no_record(content):
    """Bytes that are no whole record of RecordIO, or have more labels than bytes, are a DecodeError."""
    with pytest.raises(DecodeError, match=r"a record of|not a record"):
        RecordIO().opener(Facts()).open(memoryview(content), SampleName())
