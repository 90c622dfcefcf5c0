"""The reader: checked bytes, or an error that says what is wrong."""

import zlib

import numpy as np
import pytest

from streamer.client.reader import ChunkReader, Wanted
from streamer.errors import IntegrityError
from streamer.formats import chunkfile

KEY = bytes(range(16))
SAMPLES = [b"first", b"", b"the third sample", b"x" * 5000]
OFFSETS = np.concatenate([[0], np.cumsum([len(sample) for sample in SAMPLES])])
LOCAL_BYTES = int(OFFSETS[-1])
WANTED = [Wanted(i, int(OFFSETS[i]), int(OFFSETS[i + 1])) for i in range(len(SAMPLES))]


@pytest.fixture
def root(tmp_path):
    path = tmp_path / chunkfile.relative_path(KEY)
    path.parent.mkdir(parents=True)
    crcs = np.array([zlib.crc32(sample) for sample in SAMPLES], "<u4").tobytes()
    payload = b"".join(SAMPLES)
    header = chunkfile.ChunkHeader(KEY, LOCAL_BYTES, len(SAMPLES), zlib.crc32(crcs), zlib.crc32(payload)).encode()
    path.write_bytes(header + payload + crcs)
    return tmp_path


def read(root, wanted=WANTED, *, more=()):
    found = ChunkReader([*more, root]).read(KEY, LOCAL_BYTES, len(SAMPLES), wanted)
    return [bytes(view) for view in found]


def damage(root, offset, content):
    with (root / chunkfile.relative_path(KEY)).open("r+b") as file:
        file.seek(offset)
        file.write(content)


def test_samples_come_in_the_order_asked(root):
    """Any selection, any order, empty samples too."""
    assert read(root) == SAMPLES
    assert read(root, [WANTED[3], WANTED[1]]) == [SAMPLES[3], b""]


def test_layers_are_searched_in_order(root, tmp_path):
    """A root without the chunk is passed over."""
    assert read(root, more=[tmp_path / "upper"]) == SAMPLES


def test_a_missing_chunk_is_a_file_not_found(tmp_path):
    """The caller leases it again."""
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
    """One wrong byte in header, payload or checksums: IntegrityError for the sample that needs it."""
    damage(root, offset, content)
    with pytest.raises(IntegrityError):
        read(root, [WANTED[2]])


def test_damage_elsewhere_does_not_matter(root):
    """Only the bytes used are checked."""
    damage(root, chunkfile.HEADER_BYTES + 10, b"\xff")
    assert read(root, [WANTED[0], WANTED[3]]) == [SAMPLES[0], SAMPLES[3]]


@pytest.mark.parametrize("length", [0, 30, chunkfile.HEADER_BYTES + 100, chunkfile.crc_offset(LOCAL_BYTES, 3)])
def test_a_truncated_file_is_found(root, length):
    """Cut in the header, in the payload, in the checksums."""
    path = root / chunkfile.relative_path(KEY)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(IntegrityError):
        read(root, [WANTED[3]])


def test_a_swapped_file_is_found(root):
    """A good file of another chunk under this name: the header says so."""
    with pytest.raises(IntegrityError, match="manifest says"):
        ChunkReader([root]).read(KEY, LOCAL_BYTES + 1, len(SAMPLES), WANTED)
