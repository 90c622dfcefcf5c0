"""Types of tar entries: WebDataset takes the files that Python's tarfile takes, and GNU tar's archives (a process)."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamer.errors import RecodeError
from streamer.formats.base import Facts
from streamer.formats.compressed import CompressedRecoder
from streamer.formats.tar import BLOCK, read_entries
from streamer.formats.webdataset import WebDataset
from streamer.manifest.model import ObjectRecord, SampleName
from streamer.manifest.protocols import Note, Source, Span
from tests.tars import driven

# Those that have content: files, and what other programs write; then those that have none.
WITH_CONTENT = [b"0", b"\0", b"7", b"V", b"A", b"I", b"D", b"N", b"E", b"Q"]
WITHOUT_CONTENT = [b"1", b"2", b"3", b"4", b"5", b"6"]


def header(name: bytes, size: int, kind: bytes, magic: bytes = b"ustar  \0", link: bytes = b"") -> bytes:
    """Returns a header of 512 bytes, as tar programs write it."""
    block = bytearray(BLOCK)
    block[: len(name)] = name
    block[100:124] = b"0000644\0" + b"0000000\0" * 2
    block[124:148] = b"%011o\0" % size + b"0" * 11 + b"\0"
    block[148:156] = b" " * 8
    block[156:157] = kind
    block[157 : 157 + len(link)] = link
    block[257 : 257 + len(magic)] = magic
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def entry(name: bytes, content: bytes, kind: bytes = b"0", magic: bytes = b"ustar  \0") -> bytes:
    """Returns an entry of a tar with its content."""
    return header(name, len(content), kind, magic) + content + bytes(-len(content) % BLOCK)


def by_tarfile(raw: bytes) -> list[tuple[str, bytes]]:
    """Returns the files of an archive as webdataset takes them: `isreg`, in order."""
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        return [(member.name, archive.extractfile(member).read()) for member in archive if member.isreg()]


def by_us(raw: bytes) -> list[tuple[str, bytes]]:
    found, _ = driven(read_entries(len(raw)), raw)
    return [(each.name, raw[each.content_start : each.content_stop]) for each in found if each.is_file]


@st.composite
def archives(draw) -> bytes:
    """Draws archives with entries of all types, with extended headers before some of them."""
    raw = b""
    for number in range(draw(st.integers(0, 12))):
        name = b"%s%d.%s" % (draw(st.sampled_from([b"", b"d/", b"./"])), number // 2, (b"jpg", b"cls")[number % 2])
        magic = draw(st.sampled_from([b"ustar  \0", b"ustar\x0000"]))
        extension = draw(st.sampled_from([b"", b"", b"x", b"X", b"L"]))
        if extension == b"L":
            raw += entry(b"././@LongLink", b"long/" + name + b"\0", b"L")
        elif extension:
            record = b"path=pax/" + name + b"\n"
            raw += entry(b"PaxHeaders/x", b"%d " % (len(record) + 3) + record, extension, magic)
        kind = draw(st.sampled_from(WITH_CONTENT + WITHOUT_CONTENT))
        if kind in WITH_CONTENT:
            raw += entry(name, draw(st.binary(max_size=600)), kind, magic)
        else:
            raw += header(name, 0, kind, magic, link=b"0.jpg")
    return raw + bytes(2 * BLOCK)


@settings(max_examples=150, deadline=None)
@given(archives())
def test_files_are_those_of_tarfile(raw: bytes) -> None:
    """The parser's files are tarfile's by name and content; type X of Solaris names the next entry as x does."""
    assert by_us(raw) == by_tarfile(raw)


@settings(max_examples=100, deadline=None)
@given(archives())
def test_samples_are_those_files(raw: bytes) -> None:
    """WebDataset makes each file of an archive a field of one sample, and counts the links in one note."""
    record = ObjectRecord("s3://b/0.tar", len(raw), "v")
    steps = WebDataset().index(Source(record), Facts())
    found, _ = driven(steps, raw)
    fields = []
    for span in (each for each in found if isinstance(each, Span)):
        key, opened = WebDataset().open(memoryview(raw)[span.start : span.stop], SampleName())
        fields += [(f"{key}.{field.name}", bytes(field.content)) for field in opened]
    assert fields == by_tarfile(raw)
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        links = [member.name for member in archive if member.islnk() or member.issym()]
    notes = [each for each in found if isinstance(each, Note)]
    assert [(note.count, note.example) for note in notes] == ([(len(links), repr(links[0]))] if links else [])


@pytest.mark.process
@pytest.mark.skipif(shutil.which("tar") is None, reason="GNU tar is not installed")
def test_what_gnu_tar_writes(tmp_path: Path) -> None:
    """Labels and lists of folders that GNU tar writes are skipped, files are samples, and links are counted."""
    folder = tmp_path / "d"
    folder.mkdir()
    (folder / "a.jpg").write_bytes(b"1")
    (folder / "b.jpg").hardlink_to(folder / "a.jpg")
    (folder / "c.jpg").symlink_to("a.jpg")
    (folder / "e.jpg").write_bytes(b"2")
    options = ["--sort=name", "--label=train.part0", f"--listed-incremental={tmp_path}/list"]
    subprocess.run(["tar", *options, "-cf", f"{tmp_path}/0.tar", "-C", f"{tmp_path}", "d"], check=True)
    raw = (tmp_path / "0.tar").read_bytes()
    assert [name.removeprefix("./") for name, _ in by_us(raw)] == ["d/a.jpg", "d/e.jpg"]
    found, _ = driven(WebDataset().index(Source(ObjectRecord("0.tar", len(raw), "v")), Facts()), raw)
    assert [each.count for each in found if isinstance(each, Note)] == [2]
    assert sum(isinstance(each, Span) for each in found) == 2


def test_compressed_tars_with_links_are_refused() -> None:
    """A compressed tar with links is refused at indexing; one that was indexed before is read without them."""
    import zlib

    raw = entry(b"a.jpg", b"1") + header(b"b.jpg", 0, b"1", link=b"a.jpg") + bytes(2 * BLOCK)
    packer = zlib.compressobj(wbits=31)
    content = memoryview(packer.compress(raw) + packer.flush())
    recoder = CompressedRecoder(WebDataset(), Facts())
    with pytest.raises(RecodeError, match=r"1 files of tars are links.*hard-dereference.*'b\.jpg'"):
        recoder.recode(content, -1, b"gz")
    assert recoder.recode(content, 1, b"gz").lengths.tolist() == [2 * BLOCK]
