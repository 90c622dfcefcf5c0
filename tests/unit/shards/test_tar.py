"""The tar writer: its files are read by tarfile and by the index, and are always the same bytes."""

from __future__ import annotations

import os
import resource
import signal
import tarfile
from itertools import pairwise
from pathlib import Path

import pytest

from streamer.formats.base import Facts, ObjectRecord, Source, Span
from streamer.formats.webdataset import WebDataset
from streamer.shards.outputs.tars import TarWriter, headers
from tests.tars import driven

LONG = "a/" + "ünï" * 60
SAMPLES = [
    ("000", [("jpg", bytes(range(256)) * 7), ("cls", b"3")]),
    ("class/001", [("txt", b"")]),
    (LONG, [("json", b"{}"), ("npy", bytes(512))]),
    ("x" * 96, [("jpg", b"exactly 100 bytes of name")]),
    ("y" * 97, [("jpg", b"one more")]),
]


def written(path: Path) -> TarWriter:
    """Writes the samples as a tar."""
    path.touch()
    with TarWriter(path) as writer:
        for key, fields in SAMPLES:
            writer.add(key, fields)
        writer.finish()
    return writer


def test_tarfile_reads_it(tmp_path: Path) -> None:
    """tarfile reads a written tar with names of any length and empty files, and finds nothing else."""
    written(tmp_path / "a.tar")
    with tarfile.open(tmp_path / "a.tar") as archive:
        found = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
        assert all(member.isreg() and member.mode == 0o644 for member in archive.getmembers())
    assert found == {f"{key}.{name}": content for key, fields in SAMPLES for name, content in fields}


def test_it_knows_where_its_samples_are(tmp_path: Path) -> None:
    """The writer's size and blocks of samples are those that the index finds in the file."""
    writer = written(tmp_path / "a.tar")
    raw = (tmp_path / "a.tar").read_bytes()
    record = ObjectRecord("a.tar", len(raw), "v")
    spans, _ = driven(WebDataset().index(Source(record), Facts()), raw)
    edges = [0]
    for blocks in writer.blocks:
        edges.append(edges[-1] + 512 * blocks)
    assert spans == [Span(a, b) for a, b in pairwise(edges)]
    assert writer.size == len(raw)
    assert len(raw) % 10240 == 0


def test_the_same_samples_give_the_same_bytes(tmp_path: Path) -> None:
    """The same samples give the same bytes, without time or owner."""
    written(tmp_path / "a.tar")
    os.utime(tmp_path / "a.tar", (0, 0))
    written(tmp_path / "b.tar")
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


def test_gnu_headers_for_huge_files() -> None:
    """A file of more than 8 GiB has its size in base 256, which tarfile reads."""
    (block,) = headers("k.bin", 9 << 30)
    assert tarfile.TarInfo.frombuf(block, "utf-8", "strict").size == 9 << 30


def test_many_small_samples_are_written_whole(tmp_path: Path) -> None:
    """A tar of more pieces than one system call takes is written whole."""
    path = tmp_path / "a.tar"
    path.touch()
    with TarWriter(path) as writer:
        for number in range(3000):
            writer.add(f"{number:05d}", [("cls", b"%d" % number)])
        writer.finish()
    with tarfile.open(path) as archive:
        assert [archive.extractfile(m).read() for m in archive] == [b"%d" % n for n in range(3000)]  # type: ignore[union-attr]


def test_a_file_that_may_not_grow_is_an_error(tmp_path: Path) -> None:
    """A file that may not grow raises OSError: a partial write is not taken for the whole."""
    path = tmp_path / "a.tar"
    path.touch()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        with TarWriter(path) as writer:
            writer.add("a", [("bin", bytes(200_000))])
            with pytest.raises(OSError, match="File too large"):
                writer.finish()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.stat().st_size == 100_000
