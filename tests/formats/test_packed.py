"""Files that are compressed as a whole meet the contract of the formats; bombs and cut files are refused by name."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable

import cramjam
import pytest

from streamer.errors import ManifestError, RecodeError
from streamer.formats import compressed
from streamer.formats.base import Block, Facts, Format
from streamer.formats.compressed import DecompressError, decompress
from streamer.formats.json_lines import JsonLines
from streamer.formats.webdataset import WebDataset
from streamer.tables.tfrecord import TFRecord
from tests.formats.cases import Case, find, read_case
from tests.formats.contract import FormatContract
from tests.formats.test_webdataset import TestWebDataset
from tests.tars import tar_of

Pack = Callable[[bytes], bytes]


def zstd(content: bytes) -> bytes:
    return bytes(cramjam.zstd.compress(content))


PACKERS: dict[str, Pack] = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd}


def in_two(pack: Pack) -> Pack:
    """Makes two streams, or frames, as parallel compressors write them."""
    return lambda content: pack(content[: len(content) // 3]) + pack(content[len(content) // 3 :])


def packed(name: str, case: Case, ending: str, pack: Pack, strip: str = "") -> Case:
    """Returns a case with its objects compressed."""
    objects = {key.removesuffix(strip) + ending: pack(content) for key, content in case.objects.items()}
    return Case(name, case.format, objects, case.samples, case.raw, case.copied)


class TestPacked(FormatContract):
    @classmethod
    def cases(cls) -> list[Case]:
        lines = read_case(JsonLines(), "jsonl")
        [tars] = TestWebDataset.cases()
        records = read_case(TFRecord(), "tfrecord/examples", raw=["image/encoded"])
        copied = ("image/class/label", "many", "ü")
        records = Case(records.name, records.format, records.objects, records.samples, records.raw, frozenset(copied))
        return [
            packed("tgz", tars, ".tgz", gzip.compress, ".tar"),
            packed("tar.zst", tars, ".zst", in_two(zstd)),
            *(packed(f"jsonl.{name}", lines, f".{name}", in_two(pack)) for name, pack in PACKERS.items()),
            packed("tfrecord.gz", records, ".gz", gzip.compress),
        ]


@pytest.mark.parametrize("name", PACKERS)
@pytest.mark.parametrize("length", [0, 1, 100, pytest.param(800_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("streams", [1, 2])
def test_every_byte(name: str, length: int, streams: int) -> None:
    """`decompress` gives all bytes of one stream and of several, and refuses one byte more than the limit."""
    content = bytes(range(256)) * (length // 256) + b"x" * (length % 256)
    pack = PACKERS[name] if streams == 1 else in_two(PACKERS[name])
    assert decompress(name, memoryview(pack(content)), length) == content
    if length:
        with pytest.raises(DecompressError, match=r"more than|cannot be decompressed"):
            decompress(name, memoryview(pack(content)), length - 1)


@pytest.mark.parametrize("name", ["gz", "bz2", "xz"])
def test_zeros_behind_a_stream_are_padding(name: str) -> None:
    """Zeros after a compressed stream are padding, as gzip(1) and xz(1) have it; other bytes are refused."""
    one = PACKERS[name](b"one")
    padded = one + bytes(512)
    assert decompress(name, memoryview(padded + PACKERS[name](b"two") + bytes(512)), 6) == b"onetwo"
    with pytest.raises(DecompressError):
        decompress(name, memoryview(padded + b"x"), 6)


@pytest.mark.parametrize("name", PACKERS)
def test_a_file_that_is_cut_off(name: str) -> None:
    """A compressed file that is cut off anywhere is a DecompressError."""
    raw = PACKERS[name](bytes(range(256)) * 100)
    for stop in (1, 5, len(raw) // 2, len(raw) - 1):
        with pytest.raises(DecompressError):
            decompress(name, memoryview(raw[:stop]), 1 << 20)


def test_zlib_does_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """zlib decompresses several streams where ISA-L has no wheel."""
    import zlib

    monkeypatch.setattr(compressed, "inflate", zlib)
    content = bytes(100_000) + b"end"
    assert decompress("gz", memoryview(in_two(gzip.compress)(content)), 1 << 20) == content


def test_frames_that_do_not_say_their_length() -> None:
    """Frames of zstd without a length, as written to a pipe, are decompressed up to the limit."""
    known = zstd(b"abc" * 1000)
    assert known[4] & 0x20, "a single segment, with its length"
    # The frame header with a window descriptor in place of the length.
    width = 1 << (known[4] >> 6)
    unknown = known[:4] + bytes([known[4] & 0x04, 0x58]) + known[5 + width :]
    assert decompress("zst", memoryview(unknown), 1 << 20) == b"abc" * 1000


@pytest.mark.parametrize("name", PACKERS)
def test_a_bomb(name: str) -> None:
    """A file that decompresses to more than the limit is refused."""
    with pytest.raises(DecompressError, match="more than 1000000 bytes"):
        decompress(name, memoryview(PACKERS[name](bytes(8 << 20))), 1_000_000)


def test_a_file_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compressed file larger than the limit of a fetch is refused by the index, with what to do."""
    monkeypatch.setattr(compressed, "MOST_FETCH_BYTES", 10)
    with pytest.raises(ManifestError, match=r"a\.jsonl\.gz is one compressed stream of \d+ bytes.*pack it as several"):
        find(JsonLines(), {"a.jsonl.gz": gzip.compress(b"1\n2\n")})


@pytest.mark.parametrize(
    ("chosen", "content"), [(WebDataset(), b"no tar" * 1000), (TFRecord(), b"no record" * 1000)], ids=["tar", "record"]
)
def test_other_content(chosen: Format, content: bytes) -> None:
    """A compressed file of other content is refused with the error of the inner format."""
    name = "a.tar.gz" if chosen.name == "webdataset" else "a.tfrecord.gz"
    with pytest.raises(ManifestError, match="decompressed, "):
        find(chosen, {name: gzip.compress(content)})


def test_another_number_of_samples() -> None:
    """A compressed block that has other samples than were indexed is refused by the recoder."""
    [(_, [block])] = find(JsonLines(), {"a.jsonl.gz": gzip.compress(b"1\n2\n")}).items
    assert isinstance(block, Block)
    assert (block.samples, block.record_bytes) == (2, 2)
    recoder = JsonLines().recoder(Facts())
    with pytest.raises(RecodeError, match="3 samples, 2 were indexed"):
        recoder.recode(memoryview(gzip.compress(b"1\n2\n3")), 2, block.hint)


@pytest.mark.parametrize(
    ("found", "name", "content"),
    [(JsonLines(), "jsonl.gz", b""), (JsonLines(), "jsonl.gz", b"\n\n"), (WebDataset(), "tar.gz", bytes(1024))],
)
def test_a_file_without_samples(found: Format, name: str, content: bytes) -> None:
    """A compressed file without samples has none, beside others that have some."""
    good = b"1\n" if name == "jsonl.gz" else tar_of([("a.txt", b"1")])
    items = find(found, {f"a.{name}": gzip.compress(content), f"b.{name}": gzip.compress(good)}).items
    assert [len(blocks) for _, blocks in items] == [0, 1]


def test_packings_that_are_not_read() -> None:
    """A tar compressed with lz4 is refused as compressed in a way that is not read."""
    with pytest.raises(ManifestError, match="compressed in a way that is not read"):
        find(WebDataset(), {"a.tar.lz4": b"\x04\x22\x4d\x18"})


@pytest.mark.parametrize(
    ("found", "name"),
    [
        (WebDataset(), "a.tar.gz"),
        (TFRecord(), "a.tfrecord"),
        (TFRecord(), "a.tfrecord.gz"),
        (JsonLines(), "a.jsonl"),
        (JsonLines(), "a.jsonl.zst"),
        (WebDataset(), "a.tar"),
    ],
)
def test_a_file_without_a_byte_is_damaged(found: Format, name: str) -> None:
    """A file of no bytes, as a killed writer leaves it, is refused as damaged, and Index(damaged="skip") skips it."""
    with pytest.raises(ManifestError, match=rf"{name} is damaged: .* \(at byte 0 of 0\)") as caught:
        find(found, {name: b""})
    assert "reason" in caught.value.details
