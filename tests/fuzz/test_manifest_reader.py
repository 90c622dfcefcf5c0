"""Broken manifests, by random changes of bytes: tables, streams and root.json are read or refused as documented."""

from __future__ import annotations

import io
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from streamer.errors import ManifestCorruptError, ManifestError
from streamer.manifest.arrow_ipc.reader import map_table, read_layout
from streamer.manifest.arrow_ipc.writer import write_table
from streamer.manifest.columns import BinaryColumn
from streamer.manifest.layout import ManifestContent, ManifestPart, TableRun, decode_root, encode_root, file_name

SCHEMA = {"key": "binary", "size": "int64", "name": "key16", "codec": "uint8"}


def broken(raw: bytes, drawn: random.Random) -> bytes:
    """Returns the bytes with one to four changed, and now and then cut off."""
    out = bytearray(raw)
    for _ in range(drawn.randint(1, 4)):
        place = drawn.randrange(len(out))
        out[place] = drawn.choice([0, 1, 0x7F, 0x80, 0xFF, drawn.randrange(256)])
    return bytes(out[: drawn.randrange(1, len(out))]) if drawn.random() < 0.15 else bytes(out)


@pytest.mark.parametrize("seed", range(3))
def test_tables(seed, tmp_path: Path):
    """Each column of 900 broken table files has as many rows and lies inside the file, or the file is refused."""
    path = tmp_path / "t.arrows"
    rows = 9
    write_table(
        path,
        {
            "key": BinaryColumn.of([b"k%d" % i for i in range(rows)]),
            "size": np.arange(rows, dtype=np.int64),
            "name": np.arange(16 * rows, dtype=np.uint8).reshape(rows, 16),
            "codec": np.zeros(rows, np.uint8),
        },
    )
    good, drawn, refused = path.read_bytes(), random.Random(seed), 0
    for _ in range(300):
        path.write_bytes(broken(good, drawn))
        try:
            table = map_table(path, SCHEMA)
        except ManifestCorruptError:
            refused += 1
            continue
        assert len({len(column) for column in table.values()}) == 1
        for column in table.values():
            if isinstance(column, BinaryColumn):
                assert sum(len(column[i]) for i in range(len(column))) <= len(good)
            else:
                assert len(column.tobytes()) <= len(good)
    assert 80 < refused < 300


def test_layouts():
    """Each buffer of 6,000 broken Arrow streams lies inside the stream, or the stream is refused as corrupt."""
    sink = io.BytesIO()
    schema = pa.schema([("a", pa.int64()), ("b", pa.large_binary()), ("c", pa.binary(16))])
    batch = pa.record_batch([[1, 2], [b"x", b"yz"], [bytes(16)] * 2], schema=schema)
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(batch)
    good, drawn, refused = sink.getvalue(), random.Random(7), 0
    for _ in range(6000):
        raw = broken(good, drawn)
        try:
            layout = read_layout(raw, "t")
            assert layout.rows >= 0
            assert all(0 <= start <= stop <= len(raw) for start, stop in layout.buffers)
        except ManifestCorruptError:
            refused += 1
    assert 1000 < refused < 6000


def test_roots():
    """Each of 5,000 broken root.json raises ManifestError or has the content that its digest fits."""
    runs = {table: TableRun(0, 1, "00" * 16) for table in ("objects", "chunks", "samples")}
    content = ManifestContent("folder", True, "s3://b/", ["cat"], 8192, 100, [ManifestPart(runs)])
    good = encode_root(content, ["s3://b/"], {file_name(table, 0): 500 for table in runs})
    drawn, refused = random.Random(1), 0
    for _ in range(5000):
        raw = broken(good, drawn)
        try:
            root = decode_root(raw, "root.json")
            assert root.content.digest() == root.digest == content.digest()
        except ManifestError:
            refused += 1
    assert refused > 4000
