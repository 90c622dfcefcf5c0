"""The parser of tar headers and archives, compared with archives that Python's tarfile writes."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

import pytest

from streamer.formats.failures import DamagedError
from streamer.formats.reading import JUMP_BYTES, PROBE_BYTES, READ_BYTES
from streamer.formats.tar import (
    BLOCK,
    META_BYTES,
    Parser,
    TarEntry,
    entries_of,
    pad_size,
    parse_header,
    parse_pax,
    read_entries,
)
from tests.tars import driven, tar_of


def resealed(block: bytes, **fields: bytes) -> bytes:
    """Returns a header with other bytes at named places, and a checksum that fits."""
    places = {"size": 124, "kind": 156, "magic": 257, "prefix": 345, "name": 0}
    raw = bytearray(block)
    for name, value in fields.items():
        raw[places[name] : places[name] + len(value)] = value
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw)
    return bytes(raw)


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_entries_are_those_of_the_standard_library(kind, tmp_path):
    """Entries of USTAR, GNU and PAX archives have the names and contents that tarfile wrote, long or empty."""
    long = "d" * 60 + "/" + "e" * 90 + ".jpg"
    entries = [("a.jpg", b"x" * 700), (long, b"y" * 512), ("empty.txt", b""), ("ä/ü.cls", b"1")]
    raw = tar_of(entries, kind)
    found, _ = driven(read_entries(len(raw)), raw)
    assert [(m.name, raw[m.content_start : m.content_stop]) for m in found] == entries


@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_name_longer_than_ustar_has_room_for(kind):
    """A name of 3,000 bytes comes whole from an extended header, which belongs to its entry's range."""
    name = "n" * 3000 + ".jpg"
    raw = tar_of([("first.jpg", b"1"), (name, b"2"), ("last.jpg", b"3")], kind)
    found, _ = driven(read_entries(len(raw)), raw)
    assert [m.name for m in found] == ["first.jpg", name, "last.jpg"]
    assert [m.start for m in found[1:]] == [m.stop for m in found[:-1]]


def test_pax_size_wins_over_the_header():
    """The size in a PAX record wins over the one in the entry's header."""
    info = tarfile.TarInfo("big.bin")
    info.size = 1000
    info.pax_headers = {"size": "1000"}
    raw = bytearray(tar_of([info, ("b.txt", b"x")], tarfile.PAX_FORMAT))
    header = 2 * BLOCK
    raw[header : header + BLOCK] = resealed(bytes(raw[header : header + BLOCK]), size=b"00000000000\0")
    found, _ = driven(read_entries(len(raw)), bytes(raw))
    assert [(m.name, m.content_stop - m.content_start) for m in found] == [("big.bin", 1000), ("b.txt", 1)]


def test_sizes_from_8_gib_are_base_256():
    """The parser reads GNU's binary sizes, which headers have from 8 GiB."""
    info = tarfile.TarInfo("x")
    info.size = 9 << 30
    _, size, _ = parse_header(info.tobuf(tarfile.GNU_FORMAT), 0)
    assert size == 9 << 30


def test_directories_links_and_devices_have_no_content():
    """Entries of folders, links and FIFOs are no files, and take one header and no content."""
    kinds = [tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE]
    infos = []
    for number, kind in enumerate(kinds):
        info = tarfile.TarInfo(f"entry{number}")
        info.type, info.linkname = kind, "target"
        infos.append(info)
    raw = tar_of([*infos, ("a.txt", b"1")])
    found, _ = driven(read_entries(len(raw)), raw)
    assert [m.is_file for m in found] == [False] * len(kinds) + [True]
    assert all(m.stop - m.start == BLOCK for m in found[:-1])


def test_small_entries_are_read_forward_in_large_windows():
    """The reader of small entries asks for each byte once, in order, in windows of READ_BYTES."""
    raw = tar_of([(f"{i}.bin", bytes(1 << 20)) for i in range(20)])
    found, needs = driven(read_entries(len(raw)), raw)
    assert len(found) == 20
    assert needs[0].start == 0
    assert needs[-1].stop == len(raw)
    assert all(a.stop == b.start for a, b in pairwise(needs))
    assert {n.stop - n.start for n in needs[:-1]} == {READ_BYTES}


def test_large_entries_are_jumped_over():
    """The reader asks for little more than the headers of entries that are far larger than a window."""
    raw = tar_of([(f"{i}.bin", bytes(READ_BYTES + 2 * JUMP_BYTES)) for i in range(4)])
    _, needs = driven(read_entries(len(raw)), raw)
    assert sum(n.stop - n.start for n in needs) < READ_BYTES + 8 * PROBE_BYTES
    assert all(a.stop <= b.start for a, b in pairwise(needs))


def test_an_extended_header_may_cross_windows(monkeypatch):
    """A long name is whole though windows end inside it, and no byte is asked for twice."""
    monkeypatch.setattr("streamer.formats.reading.READ_BYTES", BLOCK)
    entries = [(f"{i}" + "n" * 1500 + ".jpg", b"12") for i in range(3)]
    raw = tar_of(entries, tarfile.GNU_FORMAT)
    found, needs = driven(read_entries(len(raw)), raw)
    assert [m.name for m in found] == [name for name, _ in entries]
    assert all(a.stop == b.start for a, b in pairwise(needs))


@pytest.mark.parametrize("cut", [0, 100, BLOCK, BLOCK + 10, 2 * BLOCK, 3 * BLOCK + 100])
def test_a_cut_archive_is_an_error(cut):
    """An archive cut anywhere before its end mark is refused, with an offset within what is left."""
    raw = tar_of([("a.bin", bytes(600)), ("b.bin", bytes(600))])[:cut]
    with pytest.raises(DamagedError, match="cut off") as caught:
        driven(read_entries(len(raw)), raw)
    assert caught.value.offset <= cut


def test_joined_archives_are_an_error():
    """Content after an archive's end mark is refused, so that `cat a.tar b.tar` does not lose b in silence."""
    raw = tar_of([("a.txt", b"1")])
    with pytest.raises(DamagedError, match="joined archives"):
        driven(read_entries(2 * len(raw)), raw + raw)
    with pytest.raises(DamagedError, match="follow the end-of-archive mark"):
        driven(read_entries(len(raw) + (2 << 20)), raw + bytes(2 << 20))


@pytest.mark.parametrize("place", [0, 3, 124, 130, 156, 257, 400, 511])
def test_one_flipped_bit_in_a_header_is_found(place):
    """A flipped bit anywhere in a header is found by its checksum."""
    broken = bytearray(tar_of([("a.txt", b"1")]))
    broken[place] ^= 0x10
    with pytest.raises(DamagedError, match=r"not a tar header"):
        driven(read_entries(len(broken)), bytes(broken))


def test_checksums_of_signed_bytes_are_accepted():
    """Header checksums over signed bytes, as old programs wrote them, are accepted."""
    block = bytearray(tarfile.TarInfo("ä.txt").tobuf(tarfile.GNU_FORMAT))
    block[148:156] = b" " * 8
    signed = sum(byte - 256 if byte >= 128 else byte for byte in block)
    block[148:156] = b"%06o\0 " % signed
    _, _, name = parse_header(bytes(block), 0)
    assert name == "ä.txt"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kind": b"S"}, "sparse file"),
        ({"kind": b"M"}, "multi-volume"),
        ({"kind": b"L", "size": b"%011o\0" % (META_BYTES + 1)}, "extended header of"),
        ({"size": b"0000000000x\0"}, "not an octal number"),
        ({"size": b"-0000000001\0"}, "not an octal number"),
        ({"size": b"00_00000001\0"}, "not an octal number"),
    ],
)
def test_headers_that_cannot_be_streamed(change, reason):
    """Sparse files, volumes, huge extended headers and sizes that are no numbers are refused with the reason."""
    raw = bytearray(tar_of([("a.txt", b"1")]))
    raw[:BLOCK] = resealed(bytes(raw[:BLOCK]), **change)
    with pytest.raises(DamagedError, match=reason):
        driven(read_entries(len(raw)), bytes(raw))


@pytest.mark.parametrize(
    "payload", [b"5 a=b", b"x a=b\n", b"6 ab\n\n", b"99 a=b\n", b"0 a=b\n", b"-6 a=b\n", b" a=b\n", b"6 a=bX"]
)
def test_broken_pax_records(payload):
    """A PAX record is refused unless it ends with a newline where its length says."""
    with pytest.raises(DamagedError, match="broken record"):
        parse_pax(payload, 0)


@pytest.mark.parametrize("byte", [b"\x80", b"\xff"])
def test_a_pax_record_without_a_space_ends(byte):
    """A PAX length that no space follows is refused; fuzzing found that it was read for ever."""
    with pytest.raises(DamagedError, match="broken record"):
        parse_pax(b"15" + byte + b"path=\xc3\xbc.txt\n", 5120)


def test_pax_records():
    """The value of a PAX record may have any character, the newline too."""
    assert parse_pax(b"12 path=a\nb\n11 size=12\n", 0) == {"path": "a\nb", "size": "12"}


@pytest.mark.parametrize(("headers", "refused"), [({"comment": "x"}, False), ({"path": "x.jpg"}, True)])
def test_a_global_pax_header_is_ignored_unless_it_renames(headers, refused):
    """A global PAX header with a comment, as git writes it, is ignored; one with a path is refused."""
    entry = tar_of([("a.txt", b"1")])
    prefix = tarfile.TarInfo.create_pax_global_header(headers)
    raw = prefix + entry
    if refused:
        with pytest.raises(DamagedError, match="global PAX header"):
            driven(read_entries(len(raw)), raw)
    else:
        found, _ = driven(read_entries(len(raw)), raw)
        assert [m.name for m in found] == ["a.txt"]


def test_entries_in_memory_are_the_same():
    """`entries_of` finds in a sample's bytes what the walk over the archive found."""
    raw = tar_of([("a.jpg", b"x" * 700), ("n" * 200 + ".txt", b"")], tarfile.GNU_FORMAT)
    found, _ = driven(read_entries(len(raw)), raw)
    assert list(entries_of(memoryview(raw)[: found[-1].stop])) == found
    assert isinstance(found[0], TarEntry)


def test_entries_in_memory_refuse_an_end():
    """`entries_of` refuses an end mark or a cut inside a sample's bytes."""
    raw = memoryview(tar_of([("a.jpg", b"x" * 700)]))
    with pytest.raises(DamagedError, match="end-of-archive mark inside"):
        list(entries_of(raw))
    with pytest.raises(DamagedError, match="cut off"):
        list(entries_of(raw[:1000]))


def test_headers_in_memory_are_read_as_those_of_the_archive():
    """`entries_of` and the archive's parser agree on entries and errors for any changed byte of a header."""
    header = tar_of([("a/b.jpg", b"x" * 700)], tarfile.GNU_FORMAT)[:BLOCK]
    content = bytes(1024) + tar_of([("a/b.cls", b"1")])[: 2 * BLOCK]
    for place in range(BLOCK):
        for value in b"\0 /0789x\x80\xff":
            wrong = header[:place] + bytes([value]) + header[place + 1 :]
            for block in (wrong, resealed(wrong) if not 148 <= place < 156 else wrong):
                assert outcome(block + content, entries_of) == outcome(block + content, of_the_archive)


def outcome(raw: bytes, walk: Callable[[memoryview], Iterable[TarEntry]]) -> object:
    """Returns the entries that are found, then the error's text or None."""
    found: list[TarEntry] = []
    try:
        found.extend(walk(memoryview(raw)))
    except DamagedError as error:
        return found, str(error)
    return found, None


def of_the_archive(raw: memoryview) -> Iterator[TarEntry]:
    """Yields the entries by the parser that reads archives; raises what `entries_of` does where they end too early."""
    parser, position = Parser(), 0
    while position < len(raw):
        block = bytes(raw[position : position + BLOCK])
        found = parser.header(block, position)
        if found is None:
            raise DamagedError("an end-of-archive mark inside a sample", position)
        if isinstance(found, TarEntry):
            if found.content_stop > len(raw):
                raise DamagedError(f"cut off inside {found.name!r}", len(raw))
            yield found
            position = found.stop
        else:
            start, stop = found
            if stop > len(raw):
                raise DamagedError("cut off inside an extended header", len(raw))
            parser.meta(block[156], bytes(raw[start:stop]), start)
            position = start + pad_size(stop - start)
