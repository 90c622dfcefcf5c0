"""WebDataset, the format of tars whose consecutive entries with one key are a sample: index and opening."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from streamer.errors import DecodeError, ManifestError
from streamer.formats.base import Facts, SampleName, Source
from streamer.formats.webdataset import WebDataset, split_name
from streamer.manifest.model import ObjectRecord
from tests.tars import driven, tar_of

URL = "s3://bucket/shard-000.tar"
FORMAT = WebDataset()


def samples(raw: bytes, url: str = URL) -> list[tuple[str, dict[str, bytes]]]:
    spans, _ = driven(FORMAT.index(Source(ObjectRecord(url, len(raw), "etag:1")), Facts()), raw)
    opened = [FORMAT.open(memoryview(raw)[s.start : s.stop], SampleName()) for s in spans]
    return [(key, {f.name: bytes(f.content) for f in fields}) for key, fields in opened]


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_consecutive_entries_with_a_key_are_a_sample(kind):
    """Consecutive entries equal up to the first dot of the basename are a sample; the rest names fields."""
    raw = tar_of(
        [("d.x/a.JPG", b"1"), ("d.x/a.seg.png", b"2"), ("d.x/b.jpg", b""), ("d.x/b.cls", b"7"), ("c.txt", b"3")], kind
    )
    assert samples(raw) == [
        ("d.x/a", {"jpg": b"1", "seg.png": b"2"}),
        ("d.x/b", {"jpg": b"", "cls": b"7"}),
        ("c", {"txt": b"3"}),
    ]


def test_a_key_that_comes_back_is_another_sample():
    """Entries are grouped into a sample only while they follow each other."""
    raw = tar_of([("a.jpg", b"1"), ("b.jpg", b"2"), ("a.jpg", b"3")])
    assert [key for key, _ in samples(raw)] == ["a", "b", "a"]


def test_what_is_no_sample_is_skipped():
    """Folders, hidden files, names without a dot and __metadata__ entries are left out, also within a sample."""
    folder = tarfile.TarInfo("d")
    folder.type = tarfile.DIRTYPE
    raw = tar_of(
        [
            *(("__shard__/info.json", b"x"), folder, ("d/.hidden.jpg", b"x"), ("d/a.jpg", b"1"), folder),
            *(("README", b"x"), ("d/a.cls", b"2"), ("__meta__/x.txt", b"x")),
        ]
    )
    assert samples(raw) == [("d/a", {"jpg": b"1", "cls": b"2"})]


def test_samples_touch_though_directories_lie_between():
    """A small gap between samples is part of the first, so that a chunk is one range."""
    folder = tarfile.TarInfo("d")
    folder.type = tarfile.DIRTYPE
    raw = tar_of([("a.jpg", b"1"), folder, ("b.jpg", b"2"), folder])
    spans, _ = driven(FORMAT.index(Source(ObjectRecord(URL, len(raw), "")), Facts()), raw)
    assert spans[0].stop == spans[1].start
    assert spans[1].stop == 5 * 512


def test_a_large_gap_is_not_part_of_a_sample():
    """A skipped entry of more than 64 KiB is in no sample's span, so that training does not fetch it."""
    raw = tar_of([("a.jpg", b"1"), ("nodot", bytes(70_000)), ("b.jpg", b"2")])
    spans, _ = driven(FORMAT.index(Source(ObjectRecord(URL, len(raw), "")), Facts()), raw)
    assert spans[1].start - spans[0].stop > 70_000


def test_an_empty_archive_has_no_samples():
    """An archive of nothing but its end mark has no samples, without an error."""
    assert samples(tar_of([])) == []


@pytest.mark.parametrize(
    ("compress", "name"), [(gzip.compress, "gzip"), (bz2.compress, "bzip2"), (lzma.compress, "xz")]
)
def test_compressed_archives_are_named(compress, name):
    """A compressed archive named .tar is refused by its content, with compression, url and offset."""
    raw = compress(tar_of([("a.jpg", b"1" * 5000)])) + bytes(600)
    with pytest.raises(ManifestError, match=f"{re.escape(URL)} is compressed with {name}.*byte 0 of {len(raw)}") as e:
        samples(raw)
    assert e.value.details == {"url": URL, "offset": 0, "size": len(raw)}


def test_zstd_magic():
    """An object that begins with zstd's magic is refused as compressed with zstd."""
    with pytest.raises(ManifestError, match="zstd"):
        samples(b"\x28\xb5\x2f\xfd" + bytes(1000))


@pytest.mark.parametrize("suffix", [".tar.lz4", ".TAR.BR", ".tar.z"])
def test_names_of_other_compressions_are_refused_without_a_request(suffix):
    """Tars named for lz4, Brotli or compress are accepted, and refused by the index before a byte is read."""
    assert FORMAT.accepts(f"x{suffix}")
    with pytest.raises(ManifestError, match="is compressed"):
        next(FORMAT.index(Source(ObjectRecord(f"s3://b/x{suffix}", 1000, "")), Facts()))


def test_a_truncated_archive_names_object_and_offset():
    """The error for a truncated tar names the url, the entry, the offset and the option that skips it."""
    raw = tar_of([("a.jpg", bytes(5000))])[:3000]
    with pytest.raises(
        ManifestError, match=r"shard-000\.tar is damaged: cut off inside 'a\.jpg'.*Index\(damaged='skip'\)"
    ) as caught:
        samples(raw)
    assert caught.value.details["offset"] == 3000


@pytest.mark.process
def test_the_commands_of_the_error_repair_a_tar(tmp_path):
    """The commands that the error of a damaged tar names keep its whole samples; the trouble page has the same ones."""
    entries = [
        ("b.jpg", b"1"),
        ("b.cls", b"2"),
        ("a-1.jpg", b"3"),
        ("a-1.cls", b"4"),
        ("a.jpg", b"5"),
        ("c.jpg", bytes(5000)),
    ]
    raw = tar_of(entries)[:7000]
    with pytest.raises(ManifestError) as caught:
        samples(raw)
    extract, pack = re.findall(r"`([^`]*tar [^`]*)`", str(caught.value))
    page = (Path(__file__).parents[3] / "docs" / "trouble.md").read_text()
    assert f"{extract} bad.tar -C folder" in page
    assert pack.replace("FOLDER", "folder") in page
    (tmp_path / "bad.tar").write_bytes(raw)
    (tmp_path / "FOLDER").mkdir()
    cut_off = subprocess.run(
        [*extract.split(), "bad.tar", "-C", "FOLDER"], cwd=tmp_path, check=False, capture_output=True
    )
    assert cut_off.returncode != 0
    (tmp_path / "FOLDER" / "c.jpg").unlink()
    subprocess.run(["bash", "-c", pack], cwd=tmp_path, check=True)
    assert samples((tmp_path / "good.tar").read_bytes()) == [
        ("a-1", {"cls": b"4", "jpg": b"3"}),
        ("a", {"jpg": b"5"}),
        ("b", {"cls": b"2", "jpg": b"1"}),
    ]


def test_a_field_twice_in_a_sample_is_an_error():
    """A sample with one field twice is refused, because no rule says which of them is meant."""
    raw = tar_of([("a.jpg", b"1"), ("a.JPG", b"2")])
    with pytest.raises(ManifestError, match="sample 'a' has two fields 'jpg'"):
        samples(raw)


@pytest.mark.parametrize(
    ("entries", "names"),
    [
        (["a.JPEG", "a.cls"], ["jpg", "cls"]),
        (["a.seg.jpeg", "a.jpg"], ["seg.jpg", "jpg"]),
        (["a.jpeg", "a.jpg"], ["jpeg", "jpg"]),
        (["a.xjpeg"], ["xjpeg"]),
    ],
)
def test_jpeg_is_jpg(entries, names):
    """Fields of .jpeg files are named jpg, unless the sample has a jpg already."""
    raw = tar_of([(name, name.encode()) for name in entries])
    (span,), _ = driven(WebDataset().index(Source(ObjectRecord("s3://b/x.tar", len(raw), "")), Facts()), raw)
    _, fields = WebDataset().open(memoryview(raw)[span.start : span.stop], SampleName())
    assert [field.name for field in fields] == names
    assert [bytes(field.content) for field in fields] == [name.encode() for name in entries]


def test_open_copies_nothing():
    """A field of an opened sample is a view of the sample's bytes."""
    raw = memoryview(bytearray(tar_of([("a.jpg", b"12345")])))[:1024]
    _, fields = FORMAT.open(raw, SampleName())
    raw[512] = 0x39
    assert bytes(fields[0].content) == b"92345"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(b"x" * 512, "not a tar header", id="no tar"),
        pytest.param(tar_of([("a.jpg", b"1"), ("b.jpg", b"1")])[: 4 * 512], "two keys", id="two samples"),
        pytest.param(b"", "no file", id="nothing"),
    ],
)
def test_open_refuses_what_is_no_sample(content, reason):
    """Bytes that are no tar, two samples, or nothing at all are DecodeErrors when opened as a sample."""
    with pytest.raises(DecodeError, match=reason):
        FORMAT.open(memoryview(content), SampleName())


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a.jpg", ("a", "jpg")),
        ("./x/a.b.c", ("./x/a", "b.c")),
        ("a.b/c", None),
        (".a.jpg", None),
        ("x/.a.jpg", None),
        ("a", None),
        ("__a__", None),
        ("a.", ("a", "")),
    ],
)
def test_split_name(name, parts):
    """`split_name` cuts an entry's name into key and field; hidden or undotted names have none."""
    assert split_name(name) == parts
