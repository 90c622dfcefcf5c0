"""Lists of numbers that are taken from Parquet's pages as they are: the same records as from pyarrow's values."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamer.errors import RecodeError
from streamer.tables.parquet import recode as parquet_recode
from streamer.tables.parquet.format import Parquet
from streamer.tables.parquet.number_lists import read_lists
from tests.formats.cases import Found, block_bytes, facts_of, find, recode, run

_ROWS = 40
_LONG = {"write_batch_size": 1, "data_page_size": 20_000}


def _written(table: pa.Table, **options: object) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **{"use_dictionary": False, **options})
    return sink.getvalue().to_pybytes()


def _lists(lengths: Callable[[int], int], dtype: str = "<f4") -> pa.Array:
    """Makes a list of numbers for each row."""
    counts = [lengths(row) for row in range(_ROWS)]
    raw = np.random.default_rng(0).integers(0, 1 << 30, sum(counts))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, pa.array(raw.astype(dtype)))


def _records(found: Found, content: bytes) -> list[bytes]:
    return [
        record
        for _, blocks in found.items
        for block in blocks
        for record in recode(Parquet(), found, block, block_bytes(block, content))
    ]


def _both(found: Found, content: bytes, monkeypatch: pytest.MonkeyPatch) -> tuple[list[bool], list[bytes], list[bytes]]:
    """Returns which lists were taken as they are, the records with them, and those that pyarrow's values make."""
    taken: list[bool] = []

    def counted(*arguments):
        lists = read_lists(*arguments)
        taken.append(lists is not None)
        return lists

    monkeypatch.setattr(parquet_recode, "read_lists", counted)
    quick = _records(found, content)
    monkeypatch.setattr(parquet_recode, "read_lists", lambda *_: None)
    return taken, quick, _records(found, content)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize(
    ("codec", "dtype"),
    [("none", "<f4"), ("snappy", "<f8"), ("gzip", "<i4"), ("brotli", "<i8"), ("zstd", "<f4"), ("lz4", "<f4")],
)
def test_values_are_those_of_pyarrow(version, codec, dtype, monkeypatch):
    """Long lists taken from pages of each codec and version are the records that pyarrow's values make."""
    table = pa.table(
        {
            "same": _lists(lambda row: 1500, dtype),
            "n": list(range(_ROWS)),
            "others": _lists(lambda row: 700 + row * 17, dtype),
            "text": [f"row {row}" for row in range(_ROWS)],
        }
    )
    content = _written(
        table, data_page_version=version, compression=codec, write_page_checksum=codec == "zstd", **_LONG
    )
    taken, quick, slow = _both(find(Parquet(), {"a.parquet": content}), content, monkeypatch)
    assert taken == [True, True]
    assert quick == slow
    assert len(quick) == _ROWS


def test_rows_of_many_pages(monkeypatch):
    """A list that goes on in the next page of version 1 is read whole."""
    table = pa.table({"latent": _lists(lambda row: 5000)})
    content = _written(table, data_page_size=3000, write_batch_size=1000)
    taken, quick, slow = _both(find(Parquet(), {"a.parquet": content}), content, monkeypatch)
    assert taken == [True]
    assert quick == slow


def test_runs_of_pages(monkeypatch):
    """Lists are read right where blocks begin in the middle of another column's run of pages."""
    table = pa.table({"large": _lists(lambda row: 6000), "small": _lists(lambda row: 300 + row)})
    content = _written(table, write_page_index=True, compression="none", **_LONG)
    found = find(Parquet(), {"a.parquet": content})
    source, _ = found.items[0]
    cut: list = []
    run(
        Parquet().index(msgspec.structs.replace(source, chunk_bytes=200_000), facts_of(found)),
        {"a.parquet": content},
        source.record,
        [],
        cut.append,
    )
    assert len(cut) == 3
    found.items[0] = (source, cut)
    taken, quick, slow = _both(found, content, monkeypatch)
    assert all(taken)
    assert quick == slow
    assert len(quick) == _ROWS


@pytest.mark.parametrize(
    ("name", "column", "options"),
    [
        ("short lists", _lists(lambda row: 20), {}),
        ("lists of one number", _lists(lambda row: 1), {}),
        ("empty lists", _lists(lambda row: 0 if row == 7 else 1000), {}),
        ("no list", pa.array([None if row == 3 else [1.0] * 1000 for row in range(_ROWS)], pa.list_(pa.float32())), {}),
        ("null in it", pa.array([[1.0] * 999 + [None]] * _ROWS, pa.list_(pa.float32())), {}),
        ("dictionary", pa.array([[1.0, 2.0] * 500] * _ROWS, pa.list_(pa.float32())), {"use_dictionary": True}),
        ("streams", _lists(lambda row: 1000), {"column_encoding": {"x.list.element": "BYTE_STREAM_SPLIT"}}),
        ("deltas", _lists(lambda row: 1000, "<i4"), {"column_encoding": {"x.list.element": "DELTA_BINARY_PACKED"}}),
    ],
)
def test_other_pages_are_left_to_pyarrow(name, column, options, monkeypatch):
    """Short, empty or null lists and pages of other encodings are read by pyarrow, with the same records."""
    content = _written(pa.table({"x": column}), **options)
    taken, quick, slow = _both(find(Parquet(), {"a.parquet": content}), content, monkeypatch)
    assert taken == [False], name
    assert quick == slow


@pytest.mark.parametrize("kind", [pa.list_(pa.uint32()), pa.list_(pa.bool_()), pa.list_(pa.list_(pa.float32()))])
def test_other_types_are_not_looked_at(kind, monkeypatch):
    """Lists of unsigned integers, booleans or lists are read by pyarrow alone."""
    row = [[1.0] * 1000] if pa.types.is_list(kind.value_type) else [True] * 1000
    content = _written(pa.table({"x": pa.array([row] * 3).cast(kind)}))
    taken, quick, slow = _both(find(Parquet(), {"a.parquet": content}), content, monkeypatch)
    assert taken == []
    assert quick == slow


def test_damaged_pages(monkeypatch):
    """Damaged pages give records of the usual number or a RecodeError, and with checksums never other records."""
    table = pa.table({"x": _lists(lambda row: 600)})
    draw = random.Random(0)
    for checksums in (False, True):
        content = _written(table, write_page_checksum=checksums, compression="snappy", **_LONG)
        found = find(Parquet(), {"a.parquet": content})
        whole, refused = _records(found, content), 0
        ((_, (block,)),) = found.items
        pages = bytearray(block_bytes(block, content))
        for _ in range(300):
            damaged = bytearray(pages)
            for _ in range(draw.choice([1, 1, 8])):
                damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
            try:
                records = recode(Parquet(), found, block, bytes(damaged))
            except RecodeError:
                refused += 1
                continue
            assert len(records) == len(whole)
            assert not checksums or records == whole
        assert refused > 0
