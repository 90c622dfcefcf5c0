"""Zip archives meet the contract of the formats, on files of the standard library; directory, damage and bombs."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zipfile
import zlib

import pytest

from streamer.errors import DecodeError, ManifestError
from streamer.formats.base import Facts, SampleName, Span
from streamer.formats.detect import detect
from streamer.formats.zip import MAX_BYTES, Zip
from streamer.manifest.protocols import Note
from tests.formats.cases import Case, find, read_case
from tests.formats.contract import FormatContract

URL = "s3://bucket/data/a.zip"
END_BYTES = 22


class TestZip(FormatContract):
    @classmethod
    def cases(cls) -> list[Case]:
        names = ("deflated", "stored", "wide", "streamed", "streamed_stored")
        copied = {"stored": [], "streamed_stored": []}
        return [read_case(Zip(), f"zip/{name}", copied=copied.get(name, ["bin"])) for name in names]


def archive(entries: dict[str, bytes], method: int = zipfile.ZIP_STORED, comment: bytes = b"") -> bytearray:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", method) as made:
        made.comment = comment
        for name, content in entries.items():
            made.writestr(name, content)
    return bytearray(sink.getvalue())


def streamed(entries: dict[str, bytes]) -> bytearray:
    """Returns an archive whose writer could not go back."""
    sink = io.BytesIO()
    with zipfile.ZipFile(NoWayBack(sink), "w") as made:  # type: ignore[arg-type]
        for name, content in entries.items():
            made.writestr(name, content)
    return bytearray(sink.getvalue())


class NoWayBack:
    """Stands for a pipe: a file that is only written to, and that cannot seek."""

    def __init__(self, sink: io.BytesIO) -> None:
        self.write, self.flush = sink.write, sink.flush


def spans_in(content: bytes) -> list[Span]:
    ((_, spans),) = find(Zip(), {"a.zip": bytes(content)}).items
    return spans


def entry(content: bytes, number: int = 0) -> int:
    """Returns where an entry of the directory is."""
    at = struct.unpack_from("<L", content, len(content) - END_BYTES + 16)[0]
    for _ in range(number):
        at += 46 + sum(struct.unpack_from("<3H", content, at + 28))
    return at


def test_the_directory_is_read_alone():
    """The index of a zip reads the archive's end and its directory, and nothing of its entries."""
    content = bytes(archive({f"{n:06}.bin": bytes(3000) for n in range(2000)}))
    found = find(Zip(), {"a.zip": content})
    assert [[need.stop - need.start for need in ask] for ask in found.survey_needs] == [[65_634]]
    assert [[need.stop - need.start for need in ask] for ask in found.needs[URL]] == [[112_000]]
    assert found.survey.read_bytes == 112_000
    ((_, spans),) = found.items
    assert len(spans) == 2000


def test_what_is_no_sample():
    """Folders, hidden files and __MACOSX entries of a zip are no samples."""
    names = ["a/", "a/b.jpg", "a/.DS_Store", "__MACOSX/a/._b.jpg", "README"]
    content = archive(dict.fromkeys(names, b""))
    opener = Zip().opener(Facts())
    keys = [opener.open(memoryview(content[s.start : s.stop]), SampleName())[0] for s in spans_in(content)]
    assert keys == ["a/b.jpg", "README"]


def test_hidden_folders_and_splits_in_an_archive():
    """Hidden folders in a zip are no samples, and a note says that its splits are one dataset."""
    names = ["train/a/1.jpg", "train/.ipynb_checkpoints/1.jpg", ".git/HEAD", "val_256/a/1.jpg", "./test/a/1.jpg"]
    found = spans_in(archive(dict.fromkeys(names, b"1")))
    assert sum(isinstance(each, Span) for each in found) == 3
    (note,) = (each for each in found if isinstance(each, Note))
    assert "several splits, which are one dataset here" in note.what
    assert "(test/, train/, val_256/)" in note.what
    assert (note.count, note.example) == (3, "'train/a/1.jpg'")


def test_names_are_keys_only(tmp_path):
    """Names of entries in a zip, with .. or absolute too, are keys alone."""
    content = archive({"../../etc/passwd": b"x", "/absolute": b"y"})
    opener = Zip().opener(Facts())
    opened = [opener.open(memoryview(content[s.start : s.stop]), SampleName()) for s in spans_in(content)]
    assert [(key, field.name) for key, (field,) in opened] == [("../../etc/passwd", "bin"), ("/absolute", "bin")]


def test_a_comment_like_an_end_record():
    """A zip whose comment looks like an end record is read by the true one."""
    comment = b"PK\x05\x06" + bytes(40)
    assert len(spans_in(archive({"a": b"1", "b": b"2"}, comment=comment))) == 2


@pytest.mark.parametrize(
    ("at", "layout", "value", "reason"),
    [
        (8, "<H", 1, "'a' that is encrypted"),
        (10, "<H", 9, "'a' that is compressed by method 9; only stored and deflated"),
        (20, "<L", 1 << 20, "entry 'a' goes on behind byte"),
        (42, "<L", 1 << 30, "goes on behind byte"),
        (20, "<L", 0xFFFFFFFF, "an entry of 64 bits without its numbers"),
        (0, "<L", 0, "no entry of a directory"),
        (28, "<H", 0xFFF0, "no entry of a directory"),
    ],
)
def test_an_entry_that_lies(at, layout, value, reason):
    """An entry of a zip's directory that is not read, or contradicts the archive, is refused with its name or place."""
    content = archive({"a": b"content", "b": b"more"})
    struct.pack_into(layout, content, entry(content) + at, value)
    with pytest.raises(ManifestError, match=reason) as caught:
        spans_in(content)
    assert caught.value.details["url"] == URL


@pytest.mark.parametrize(
    ("at", "layout", "value", "reason"),
    [
        (4, "<H", 1, "one of several files"),
        (8, "<H", 1, "one of several files"),
        (12, "<L", 1, "a directory of 2 entries in 1 bytes"),
        (16, "<L", 1 << 30, "from byte 1073741824 on"),
        (16, "<L", 0, "from byte 0 on"),
        (20, "<H", 7, "its end record is missing"),
        (0, "<L", 0, "its end record is missing"),
    ],
)
def test_an_end_record_that_lies(at, layout, value, reason):
    """A zip with a false end record, or with bytes before or after the archive, is refused."""
    content = archive({"a": b"content", "b": b"more"})
    for moved in (b"x" + content, content + b"x", content[:-1], content[: len(content) // 2], b""):
        with pytest.raises(ManifestError, match=r"is damaged: .*at byte \d+ of \d+"):
            spans_in(moved)
    struct.pack_into(layout, content, len(content) - END_BYTES + at, value)
    with pytest.raises(ManifestError, match=reason):
        spans_in(content)


def test_entries_that_overlap():
    """Zip entries at one place are refused, because a bomb would have thousands."""
    content = archive({"a": b"content", "b": b"more"})
    struct.pack_into("<L", content, entry(content, 1) + 42, 0)
    with pytest.raises(ManifestError, match="where another begins"):
        spans_in(content)


def test_bombs():
    """Zip entries that decompress to too much, or more than they say, are refused without the memory."""
    content = archive({"a": bytes(1 << 20)}, zipfile.ZIP_DEFLATED)
    for length in (MAX_BYTES + 1, 3 << 20):
        wrong = bytearray(content)
        struct.pack_into("<L", wrong, entry(wrong) + 24, length)
        with pytest.raises(ManifestError, match=rf"'a' that \d+ bytes decompress to {length}; at most"):
            spans_in(wrong)
    packed = zlib.compressobj(9, zlib.DEFLATED, -15)
    body = packed.compress(bytes(200 << 20)) + packed.flush()
    head = struct.pack("<4s5H3L2H", b"PK\x03\x04", 20, 0, 8, 0, 0, 0, len(body), 1000, 1, 0) + b"a"
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match=r"its head says .* and 1000"):
            Zip().opener(Facts()).open(memoryview(head + body), SampleName())
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_entries_that_are_damaged(method):
    """A zip entry that is cut off, or has another byte outside its name, is a DecodeError."""
    content = bytes(archive({"a.bin": b"some content " * 9}, method))
    (span,) = spans_in(content)
    entry, opener = content[span.start : span.stop], Zip().opener(Facts())
    for wrong in (b"", entry[:20], entry[:33], entry[:-1], b"x" + entry[1:], entry[:8] + b"\x09" + entry[9:]):
        with pytest.raises(DecodeError, match="bytes are not an entry of a zip file"):
            opener.open(memoryview(wrong), SampleName())
    for at in range(14, len(entry)):
        # Lengths of names, and a name; the unpacked length, which says nothing more of what is not packed.
        if at in range(26, 36) or (method == zipfile.ZIP_STORED and at in range(22, 26)):
            continue
        with pytest.raises(DecodeError, match="bytes are not an entry of a zip file"):
            opener.open(memoryview(entry[:at] + bytes([entry[at] ^ 4]) + entry[at + 1 :]), SampleName())


@pytest.mark.parametrize("write", [archive, streamed])
def test_a_stored_entry_of_which_a_byte_is_another(write):
    """The checksum of a stored zip entry is compared, also where it follows the content."""
    written = write({"a/b.bin": b"some content " * 9})
    (span,) = spans_in(written)
    written[written.index(b"some content") + 50] ^= 1
    entry = memoryview(written)[span.start : span.stop]
    with pytest.raises(DecodeError, match=r"the checksum of 'a/b.bin' is 0x\w+, not 0x\w+"):
        Zip().opener(Facts()).open(entry, SampleName())


def test_found_by_itself():
    """Zip archives are detected by their names."""
    assert detect(["train2017.zip", "val2017.zip"]) == "zip"
