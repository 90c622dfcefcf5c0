"""Chunk files with shared parts: what a reader gets is head and parts of each sample, or a typed error."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamer.cache.chunk_files import ChunkBytes, verify_file, write_chunk
from streamer.cache.folder import CacheFolder, open_folder
from streamer.client.chunk_reader import ChunkReader, WantedSample
from streamer.errors import IntegrityError
from streamer.formats.base import Records
from streamer.formats.chunkfile import ChunkHeader, RecordTable
from streamer.manifest.blocks import Block, encode_hints, plan_local_bytes
from streamer.manifest.model import Codec, Facts
from streamer.recode.messages import RecodeJob
from streamer.recode.shared import Buffer
from streamer.recode.work import recode

KEY = bytes(range(16))
quick = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


class Drawn:
    """Stands for a recoder: gives the drawn heads, parts and ranges block by block, and ignores what it is given."""

    def __init__(self, blocks: list[tuple[list[bytes], list[bytes], list[list[list[int]]]]]) -> None:
        self._blocks = iter(blocks)

    def recode(self, content: memoryview, samples: int, hint: bytes) -> Records:
        heads, parts, ranges = next(self._blocks)
        return Records(
            [b"".join(heads)],
            np.array(list(map(len, heads)), np.int64),
            parts,
            np.array(list(map(len, parts)), np.int64),
            np.array(ranges, np.int64).reshape(len(heads), -1, 2),
        )


@st.composite
def blocks(draw: st.DrawFn) -> list[tuple[list[bytes], list[bytes], list[list[list[int]]]]]:
    """Blocks of heads, parts, and ranges of parts."""
    k = draw(st.integers(1, 3))
    made = []
    for _ in range(draw(st.integers(1, 3))):
        heads = draw(st.lists(st.binary(max_size=9), min_size=1, max_size=6))
        parts = draw(st.lists(st.binary(max_size=20), max_size=8))
        edge = st.integers(0, len(parts))
        ranges = draw(
            st.lists(
                st.lists(st.tuples(edge, edge).map(sorted), min_size=k, max_size=k),
                min_size=len(heads),
                max_size=len(heads),
            )
        )
        made.append((heads, parts, ranges))
    return made


def chunk_of(drawn: list[tuple[list[bytes], list[bytes], list[list[list[int]]]]]) -> tuple[bytes, int, int]:
    """The bytes of the chunk of these blocks, its samples, and the bytes that were planned for it."""
    written: list[Buffer] = []
    k = len(drawn[0][2][0])
    told = [
        Block(((0, 1),), len(heads), sum(map(len, heads)) + sum(map(len, parts)), b"", (), len(parts), k)
        for heads, parts, _ in drawn
    ]
    samples, planned = sum(block.samples for block in told), plan_local_bytes(told, sum(b.record_bytes for b in told))
    job = RecodeJob("drawn", {}, Facts(), encode_hints(told), samples, len(told), planned)
    length, found, codec = recode(job, Drawn(drawn), memoryview(bytes(len(told))), written.extend)
    content = b"".join(map(bytes, written))
    assert (len(content), found, codec) == (length, samples, Codec.SHARED)
    return content, samples, planned


def published(content: bytes, samples: int, root: Path) -> tuple[CacheFolder, int]:
    """Writes the chunk file; returns its folder and length."""
    folder = open_folder(root)
    table = RecordTable.decode(content, samples, Codec.SHARED, len(content))
    return folder, write_chunk(ChunkBytes(KEY, [content], table.starts, Codec.SHARED), folder)


def read(root: Path, samples: int, order: list[int], cut: int) -> list[bytes]:
    """Reads samples into memory of pieces of at most `cut` bytes."""
    reader = ChunkReader([root])
    bounds = reader.records(KEY, samples).bounds.tolist()
    targets = []
    for sample in order:
        memory = memoryview(bytearray(bounds[sample + 1] - bounds[sample]))
        pieces = [memory[at : at + cut] for at in range(0, len(memory), cut)]
        targets.append((WantedSample(sample, bounds[sample], bounds[sample + 1]), pieces))
    reader.read_records(KEY, samples, targets)
    return [b"".join(pieces) for _, pieces in targets]


@quick
@given(blocks(), st.randoms(use_true_random=False), st.integers(1, 30))
def test_records_are_head_and_parts(tmp_path: Path, drawn, random, cut: int) -> None:
    """A record read from a chunk with shared parts is its head and its parts, in any order and pieces of memory.
    The file is as long as planned, and is verified.
    """
    content, samples, planned = chunk_of(drawn)
    expected = [
        head + b"".join(b"".join(parts[first:stop]) for first, stop in own)
        for heads, parts, ranges in drawn
        for head, own in zip(heads, ranges, strict=True)
    ]
    folder, length = published(content, samples, tmp_path)
    assert length == 64 + planned + 4 * samples
    assert verify_file(folder.chunk_path(KEY), KEY).codec == Codec.SHARED
    order = random.sample(range(samples), samples)
    assert read(tmp_path, samples, order, cut) == [expected[sample] for sample in order]


@quick
@given(blocks(), st.data())
def test_a_flipped_bit_is_found(tmp_path: Path, drawn, data: st.DataObject) -> None:
    """A flipped bit in a chunk file fails its verification; records that are read are right, or the file is refused."""
    content, samples, _ = chunk_of(drawn)
    folder, length = published(content, samples, tmp_path)
    path = folder.chunk_path(KEY)
    expected = read(tmp_path, samples, list(range(samples)), 99)
    raw = bytearray(path.read_bytes())
    raw[data.draw(st.integers(0, length - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(raw)
    with pytest.raises(IntegrityError):
        verify_file(path, KEY)
    try:
        assert read(tmp_path, samples, list(range(samples)), 99) == expected
    except IntegrityError as error:
        assert str(path) in str(error)  # noqa: PT017


@quick
@given(blocks(), st.data())
def test_a_wrong_table_with_right_checksums(tmp_path: Path, drawn, data: st.DataObject) -> None:
    """A table with a wrong number but right checksums gives the records it describes, or is refused with the path."""
    content, samples, _ = chunk_of(drawn)
    table = RecordTable.decode(content, samples, Codec.SHARED, len(content))
    begin = int(table.starts[-2])
    numbers = np.frombuffer(content[begin:], "<u4").copy()
    place = data.draw(st.integers(0, len(numbers) - 1))
    numbers[place] = data.draw(st.integers(0, 2**32 - 1) | st.integers(0, 20))
    wrong = content[:begin] + numbers.tobytes()
    entries = [wrong[a:b] for a, b in zip(table.starts, table.starts[1:], strict=False)]
    sums = np.array([zlib.crc32(entry) for entry in entries], "<u4").tobytes()
    header = ChunkHeader(KEY, len(wrong), len(entries), zlib.crc32(sums), zlib.crc32(wrong), Codec.SHARED)
    folder, _ = published(content, samples, tmp_path)
    folder.chunk_path(KEY).write_bytes(header.encode() + wrong + sums)
    try:
        found = read(tmp_path, samples, list(range(samples)), 99)
    except IntegrityError as error:
        assert str(folder.chunk_path(KEY)) in str(error)  # noqa: PT017
    else:
        told = RecordTable.decode(wrong, samples, Codec.SHARED, len(wrong))
        assert found == [bytes(told.record(sample, memoryview(wrong))) for sample in range(samples)]
