"""Tables of a manifest as Arrow IPC streams: written, mapped, and compared with pyarrow."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from streamer.errors import ManifestCorruptError
from streamer.manifest.arrow_ipc.reader import map_table
from streamer.manifest.arrow_ipc.writer import write_table
from streamer.manifest.columns import BinaryColumn, digest_of

SCHEMA = {"name": "binary", "size": "int64", "start": "uint32", "label": "int32", "codec": "uint8", "key": "key16"}


def table(rows: int) -> dict:
    return {
        "name": BinaryColumn.of([b"x" * (i % 5) for i in range(rows)]),
        "size": np.arange(rows, dtype=np.int64) << 40,
        "start": np.arange(rows, dtype=np.uint32),
        "label": -np.arange(rows, dtype=np.int32),
        "codec": np.zeros(rows, np.uint8),
        "key": np.arange(rows * 16, dtype=np.uint8).reshape(rows, 16),
    }


def values(found: dict) -> dict[str, list]:
    out = {}
    for name, column in found.items():
        if isinstance(column, BinaryColumn):
            out[name] = [column[i] for i in range(len(column))]
        elif column.ndim == 2:
            out[name] = [row.tobytes() for row in column]
        else:
            out[name] = column.tolist()
    return out


@pytest.mark.parametrize("rows", [0, 1, 7, 1000])
def test_what_is_written_is_mapped(tmp_path, rows):
    """A written table is mapped with the same names, types and values, and its returned length is the file's."""
    path = tmp_path / "t.arrows"
    assert write_table(path, table(rows)) == path.stat().st_size
    assert values(map_table(path, SCHEMA)) == values(table(rows))


@pytest.mark.parametrize("rows", [0, 1000])
def test_pyarrow_reads_the_same(tmp_path, rows):
    """pyarrow reads a written table with the same values."""
    path = tmp_path / "t.arrows"
    write_table(path, table(rows))
    with pa.OSFile(str(path)) as file:
        found = pa.ipc.open_stream(file).read_all().to_pydict()
    assert found == values(table(rows))


def test_what_pyarrow_writes_is_mapped(tmp_path):
    """A stream that pyarrow wrote is mapped, also with offsets of 64 bits."""
    path = tmp_path / "t.arrows"
    batch = pa.record_batch(
        {"name": pa.array([b"a", b"", b"ccc"], pa.large_binary()), "size": pa.array([1, 2, 3], pa.int64())}
    )
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, batch.schema) as writer:
        writer.write_batch(batch)
    found = map_table(path, {"name": "binary", "size": "int64"})
    assert values(found) == {"name": [b"a", b"", b"ccc"], "size": [1, 2, 3]}
    assert found["name"].offsets.dtype == np.int64


def test_columns_are_read_only_views(tmp_path):
    """Mapped columns are read-only views of the file and no copies."""
    path = tmp_path / "t.arrows"
    write_table(path, table(5))
    column = map_table(path, SCHEMA)["size"]
    assert not column.flags.writeable
    assert not column.flags.owndata


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"size": "int64"}, "has columns name, size"),
        ({**SCHEMA, "size": "int32"}, "column size is int64, expected int32"),
        ({**SCHEMA, "start": "int32"}, "column start is uint32, expected int32"),
    ],
)
def test_another_schema_is_refused(tmp_path, schema, reason):
    """A table with other columns or types than expected raises ManifestCorruptError that names them."""
    path = tmp_path / "t.arrows"
    write_table(path, table(5))
    with pytest.raises(ManifestCorruptError, match=reason):
        map_table(path, schema)


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_no_file_or_an_empty_one(tmp_path, name):
    """A missing or empty table raises ManifestCorruptError when it is mapped."""
    (tmp_path / "empty").touch()
    with pytest.raises(ManifestCorruptError, match="cannot be mapped"):
        map_table(tmp_path / name, SCHEMA)


def test_digest_covers_names_types_and_values(tmp_path):
    """The digest of a table depends on names, types and values, and not on the file or the width of its offsets."""
    base = {"a": np.array([1, 2], np.int64), "b": BinaryColumn.of([b"xy", b"z"])}
    wide = BinaryColumn(base["b"].offsets.astype(np.int64), base["b"].content)
    others = [
        {"a": np.array([1, 3], np.int64), "b": base["b"]},
        {"a": np.array([1, 2], np.int32), "b": base["b"]},
        {"c": base["a"], "b": base["b"]},
        {"a": base["a"], "b": BinaryColumn.of([b"x", b"yz"])},
    ]
    assert len({digest_of(t) for t in [base, *others]}) == 5
    assert digest_of({**base, "b": wide}) == digest_of(base)
    write_table(tmp_path / "t.arrows", base)
    assert digest_of(map_table(tmp_path / "t.arrows", {"a": "int64", "b": "binary"})) == digest_of(base)
