"""The reader of chunk files: checked bytes, or an error that says what is wrong; system calls may be replaced."""

import errno
import os
import zlib
from pathlib import Path

import msgspec
import numpy as np
import pytest

from streamer.client import chunk_reader as reader_module
from streamer.client.chunk_reader import ChunkReader, WantedSample
from streamer.errors import CacheError, IntegrityError
from streamer.formats import chunkfile

KEY = bytes(range(16))
SAMPLES = [b"first", b"", b"the third sample", b"x" * 5000]
OFFSETS = np.concatenate([[0], np.cumsum([len(sample) for sample in SAMPLES])])
LOCAL_BYTES = int(OFFSETS[-1])
WANTED = [WantedSample(i, int(OFFSETS[i]), int(OFFSETS[i + 1])) for i in range(len(SAMPLES))]


@pytest.fixture
def root(tmp_path):
    """A cache folder with one chunk of four samples."""
    path = tmp_path / chunkfile.relative_path(KEY)
    path.parent.mkdir(parents=True)
    crcs = np.array([zlib.crc32(sample) for sample in SAMPLES], "<u4").tobytes()
    payload = b"".join(SAMPLES)
    header = chunkfile.ChunkHeader(KEY, LOCAL_BYTES, len(SAMPLES), zlib.crc32(crcs), zlib.crc32(payload)).encode()
    path.write_bytes(header + payload + crcs)
    return tmp_path


def read(root, wanted=WANTED, *, more=()):
    """Reads samples of the chunk from folders that are searched before `root`, and from `root`."""
    found = ChunkReader([*more, root]).read(KEY, LOCAL_BYTES, len(SAMPLES), wanted)
    return [bytes(view) for view in found]


def damage(root, offset, content):
    """Overwrites bytes of the chunk file."""
    with (root / chunkfile.relative_path(KEY)).open("r+b") as file:
        file.seek(offset)
        file.write(content)


def test_samples_come_in_the_order_asked(root):
    """Samples are returned in the order asked for, any selection of them and empty ones too."""
    assert read(root) == SAMPLES
    assert read(root, [WANTED[3], WANTED[1]]) == [SAMPLES[3], b""]


def test_neighbours_are_read_in_one_call(root, monkeypatch):
    """Adjacent samples are read by one preadv into buffers of any length, and across a gap by two."""
    calls = []
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: calls.append(len(buffers)) or preadv(fd, buffers, at))
    pieces = [[memoryview(bytearray(count)) for count in (1, len(sample) - 1) if count > 0] for sample in SAMPLES]
    pieces[1] = []
    reader = ChunkReader([root])
    reader.read_into(KEY, LOCAL_BYTES, len(SAMPLES), list(zip(WANTED, pieces, strict=True)))
    assert [b"".join(parts) for parts in pieces] == SAMPLES
    assert calls == [6]
    assert read(root, [WANTED[0], WANTED[2]]) == [SAMPLES[0], SAMPLES[2]]
    assert len(calls) == 3


def test_a_call_takes_only_so_many_bytes_and_pieces(root, monkeypatch):
    """Runs of adjacent samples are cut where a call would take too many bytes or buffers; their bytes stay the same."""
    monkeypatch.setattr(reader_module, "_RUN_BYTES", 20)
    assert read(root) == SAMPLES
    monkeypatch.setattr(reader_module, "_RUN_BYTES", 1 << 20)
    monkeypatch.setattr(reader_module, "_RUN_PIECES", 2)
    assert read(root) == SAMPLES


def test_runs_are_cut_by_bytes_pieces_and_gaps(monkeypatch):
    """Adjacent samples are grouped into runs, which end at a gap and at the limits of a call."""
    wanted = [(WantedSample(i, 10 * i, 10 * i + 10), [memoryview(bytearray(5))] * 2) for i in range(10)]

    def lengths(some):
        return [len(run) for run in reader_module._group_runs(some)]

    assert lengths(wanted) == [10]
    assert lengths(wanted[:4] + wanted[5:]) == [4, 5]
    monkeypatch.setattr(reader_module, "_RUN_BYTES", 35)
    assert lengths(wanted) == [3, 3, 3, 1]
    monkeypatch.setattr(reader_module, "_RUN_PIECES", 5)
    assert lengths(wanted) == [2, 2, 2, 2, 2]
    monkeypatch.setattr(reader_module, "_RUN_BYTES", 5)
    assert lengths(wanted) == [1] * 10
    assert lengths([]) == []


def test_a_read_that_stops_early_goes_on(root, monkeypatch):
    """A preadv that gives fewer bytes than asked is continued where it stopped, across the buffers."""
    preadv = os.preadv

    def seven(fd, buffers, at):
        """Stands for a kernel that reads seven bytes at most."""
        left, few = 7, []
        for buffer in buffers:
            few.append(buffer[:left])
            left -= len(few[-1])
        return preadv(fd, few, at)

    monkeypatch.setattr(os, "preadv", seven)
    assert read(root) == SAMPLES


def test_each_of_several_neighbours_is_checked(root):
    """A wrong byte in one of several adjacent samples is an IntegrityError with its number; others can be read."""
    damage(root, chunkfile.HEADER_BYTES + LOCAL_BYTES - 1, b"?")
    with pytest.raises(IntegrityError, match="sample 3"):
        read(root)
    assert read(root, WANTED[:3]) == SAMPLES[:3]


def test_layers_are_searched_in_order(root, tmp_path):
    """A chunk is read from the next folder if the first does not have it."""
    assert read(root, more=[tmp_path / "upper"]) == SAMPLES


def test_a_missing_chunk_is_a_file_not_found(tmp_path):
    """A missing chunk is a FileNotFoundError, after which the caller leases it again."""
    with pytest.raises(FileNotFoundError):
        ChunkReader([tmp_path]).read(KEY, LOCAL_BYTES, len(SAMPLES), WANTED)


@pytest.mark.parametrize(
    ("offset", "content"),
    [
        pytest.param(0, b"garbage!", id="magic"),
        pytest.param(20, b"\xff", id="key in the header"),
        pytest.param(chunkfile.HEADER_BYTES + 10, b"\xff", id="a byte of the third sample"),
        pytest.param(chunkfile.crc_offset(LOCAL_BYTES, 2), b"\0\0\0\0", id="its checksum"),
    ],
)
def test_damage_is_found_by_whoever_uses_the_bytes(root, offset, content):
    """A wrong byte in header, payload or checksums of a chunk is an IntegrityError for the sample that needs it."""
    damage(root, offset, content)
    with pytest.raises(IntegrityError):
        read(root, [WANTED[2]])


def test_damage_elsewhere_does_not_matter(root):
    """Damage to a sample does not prevent the reading of others, since only the bytes used are checked."""
    damage(root, chunkfile.HEADER_BYTES + 10, b"\xff")
    assert read(root, [WANTED[0], WANTED[3]]) == [SAMPLES[0], SAMPLES[3]]


@pytest.mark.parametrize("length", [0, 30, chunkfile.HEADER_BYTES + 100, chunkfile.crc_offset(LOCAL_BYTES, 3)])
def test_a_truncated_file_is_found(root, length):
    """A chunk file that is cut short in the header, the payload or the checksums is an IntegrityError."""
    path = root / chunkfile.relative_path(KEY)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(IntegrityError):
        read(root, [WANTED[3]])


def test_a_swapped_file_is_found(root):
    """A chunk file whose header disagrees with the manifest is an IntegrityError."""
    with pytest.raises(IntegrityError, match="manifest says"):
        ChunkReader([root]).read(KEY, LOCAL_BYTES + 1, len(SAMPLES), WANTED)


def preads(monkeypatch):
    """Returns the list that gets the offsets of all reads but those of samples, from now on."""
    asked = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, count, at: asked.append(at) or pread(descriptor, count, at))
    return asked


def read_by(reader, sample):
    """Reads one sample by this reader."""
    (found,) = reader.read(KEY, LOCAL_BYTES, len(SAMPLES), [WANTED[sample]])
    return bytes(found)


def test_header_and_checksums_are_read_once(root, monkeypatch):
    """The header and the checksums of a chunk are read once for several reads."""
    asked, reader = preads(monkeypatch), ChunkReader([root])
    assert [read_by(reader, sample) for sample in (2, 0, 3)] == [SAMPLES[2], SAMPLES[0], SAMPLES[3]]
    assert asked == [0, chunkfile.crc_offset(LOCAL_BYTES, 0)]


def test_checksums_of_very_many_samples_are_read_each_time(root, monkeypatch):
    """Of a chunk with very many samples only the checksums of those that are read are read, each time."""
    monkeypatch.setattr(reader_module, "_KEPT_SAMPLES", 3)
    asked, reader = preads(monkeypatch), ChunkReader([root])
    assert [read_by(reader, sample) for sample in (2, 3)] == [SAMPLES[2], SAMPLES[3]]
    assert asked == [at for sample in (2, 3) for at in (0, chunkfile.crc_offset(LOCAL_BYTES, sample))]


def test_checksums_are_kept_of_some_chunks(root, monkeypatch):
    """A reader keeps the checksums of a bounded number of chunks, so that a million chunks do not fill its memory."""
    entry = reader_module._ENTRY_BYTES + chunkfile.CRC_BYTES * len(SAMPLES)
    monkeypatch.setattr(reader_module, "_KEPT_BYTES", 2 * entry)
    reader, path = ChunkReader([root]), root / chunkfile.relative_path(KEY)
    for number in range(5):
        key = bytes([number]) * 16
        other = root / chunkfile.relative_path(key)
        other.parent.mkdir(exist_ok=True)
        content = path.read_bytes()
        header = chunkfile.ChunkHeader.decode(content, "")
        other.write_bytes(msgspec.structs.replace(header, key=key).encode() + content[chunkfile.HEADER_BYTES :])
        assert bytes(reader.read(key, LOCAL_BYTES, len(SAMPLES), [WANTED[2]])[0]) == SAMPLES[2]
        assert len(reader._tables) <= 2


def test_a_file_that_was_swapped_since_is_found(root):
    """A chunk file that was replaced by another's since its checksums were read is an IntegrityError."""
    reader, path = ChunkReader([root]), root / chunkfile.relative_path(KEY)
    assert read_by(reader, 2) == SAMPLES[2]
    other = b"".join([*SAMPLES[:2], SAMPLES[2].upper(), *SAMPLES[3:]])
    crcs = np.array(
        [zlib.crc32(bytes(other[OFFSETS[i] : OFFSETS[i + 1]])) for i in range(len(SAMPLES))], "<u4"
    ).tobytes()
    header = chunkfile.ChunkHeader(bytes(16), LOCAL_BYTES, len(SAMPLES), zlib.crc32(crcs), zlib.crc32(other)).encode()
    path.write_bytes(header + other + crcs)
    with pytest.raises(IntegrityError, match="header says"):
        read_by(reader, 2)


def test_a_chunk_that_was_refused_and_fetched_again_is_read(root):
    """A chunk that was refused and fetched again is read, because the kept checksums of the broken file are dropped."""
    path = root / chunkfile.relative_path(KEY)
    good = path.read_bytes()
    damage(root, chunkfile.crc_offset(LOCAL_BYTES, 2), b"\0\0\0\0")
    reader = ChunkReader([root])
    with pytest.raises(IntegrityError):
        read_by(reader, 2)
    path.write_bytes(good)
    assert read_by(reader, 2) == SAMPLES[2]


@pytest.mark.skipif(os.geteuid() != 0, reason="acts as another user: needs root")
def test_a_folder_in_memory_is_that_of_the_owner_of_the_cache(root, monkeypatch):
    """A chunk file in /dev/shm is read only if the owner of the cache owns it, as all users may make folders there."""
    monkeypatch.setattr(reader_module, "_SHARED_BY_ALL", str(root))
    roots = [Path("/"), root]
    assert ChunkReader(roots).read(KEY, LOCAL_BYTES, len(SAMPLES), WANTED)
    os.chown(root / chunkfile.relative_path(KEY), 65534, 65534)
    with pytest.raises(FileNotFoundError):
        ChunkReader(roots).read(KEY, LOCAL_BYTES, len(SAMPLES), WANTED)


def test_chunks_in_memory_are_read_while_the_cache_folder_is_missing(root, tmp_path, monkeypatch):
    """Chunks in memory are read while the cache folder is missing or a link that leads nowhere."""
    monkeypatch.setattr(reader_module, "_SHARED_BY_ALL", str(root))
    roots = [tmp_path / "missing", root]
    assert ChunkReader(roots).read(KEY, LOCAL_BYTES, len(SAMPLES), WANTED) == SAMPLES
    roots[0].symlink_to("/nowhere/else")
    assert ChunkReader(roots).read(KEY, LOCAL_BYTES, len(SAMPLES), WANTED) == SAMPLES


@pytest.mark.parametrize("name", ["open", "pread", "preadv"])
def test_a_read_that_fails_twice_is_tried_again(root, monkeypatch, name):
    """A read that fails twice with EIO is tried again and returns the bytes."""
    call, failures = getattr(os, name), [errno.EIO, errno.EIO]

    def fails(*arguments):
        """Stands for a system call that fails twice with EIO."""
        if failures:
            raise OSError(failures.pop(), "Input/output error")
        return call(*arguments)

    monkeypatch.setattr(os, name, fails)
    assert read(root) == SAMPLES
    assert failures == []


def test_parts_of_a_read_are_joined(root, monkeypatch):
    """Reads are continued on a disk that answers every call with a part of what was asked for."""
    pread, preadv = os.pread, os.preadv
    monkeypatch.setattr(os, "pread", lambda fd, length, at: pread(fd, length // 2 + 1, at))
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: preadv(fd, [b for b in buffers if len(b)][:1], at))
    assert read(root) == SAMPLES


def test_a_file_that_cannot_be_read_is_a_wrong_chunk(root, monkeypatch):
    """A chunk file that cannot be read is an IntegrityError, so that its reader rejects the chunk."""

    def fails(*arguments):
        """Stands for a disk on which every read fails."""
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "preadv", fails)
    with pytest.raises(IntegrityError, match="cannot be read: Input/output error"):
        read(root)


def test_another_copy_is_read_where_one_fails(root, tmp_path_factory, monkeypatch):
    """A good copy of a chunk is read where the copy in another folder is damaged."""
    damaged = tmp_path_factory.mktemp("damaged")
    (damaged / chunkfile.relative_path(KEY)).parent.mkdir(parents=True)
    (damaged / chunkfile.relative_path(KEY)).write_bytes(b"torn")
    assert read(root, more=[damaged]) == SAMPLES


def test_too_many_open_files_are_no_wrong_chunk(root, monkeypatch):
    """Too many open files are a CacheError that says so, and not a wrong chunk, since no other copy would help."""

    def fails(*arguments):
        """Stands for a process that can open no further file."""
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "open", fails)
    with pytest.raises(CacheError, match="raise the limit of open files"):
        read(root)
