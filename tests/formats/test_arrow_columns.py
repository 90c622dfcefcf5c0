"""Columns of Arrow files that are read alone, other schemas, and the images of datasets; on files of pyarrow."""

from __future__ import annotations

import io
import json
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from streamer.errors import ConfigError, ManifestError, RecodeError
from streamer.formats.base import Format
from streamer.tables.arrow_ipc.format import ArrowIPC
from streamer.tables.parquet.format import Parquet
from tests.formats.cases import block_bytes, facts_of, find, recode
from tests.formats.test_table_schemas import arrow, arrow_stream, drawn_tables, parquet, samples

ROWS = 40
TABLE = pa.table(
    {
        "number": pa.array(range(ROWS)),
        "text": pa.array([f"t{row}" if row % 3 else None for row in range(ROWS)]),
        "view": pa.array([f"a text that is long enough {row}" for row in range(ROWS)], pa.string_view()),
        "list": pa.array([[row] * (row % 4) for row in range(ROWS)], pa.list_(pa.int32())),
        "pair": pa.array([[row, row + 1] for row in range(ROWS)], pa.list_(pa.float32(), 2)),
        "word": pa.array(["x", "y"] * (ROWS // 2)).dictionary_encode(),
        "map": pa.array([[("a", row)] for row in range(ROWS)], pa.map_(pa.string(), pa.int64())),
        "struct": pa.array([{"part": row, "other": f"v{row}"} if row % 5 else None for row in range(ROWS)]),
        "views": pa.array([[b"a binary that is long enough"] * (row % 3) for row in range(ROWS)]).cast(
            pa.list_(pa.binary_view())
        ),
        "nothing": pa.nulls(ROWS),
        "flag": pa.array([row % 2 == 0 for row in range(ROWS)]),
    }
)


def written(table: pa.Table, compression: str | None, *, is_file: bool, batch_rows: int = 16) -> bytes:
    """Returns the bytes of a file or stream with batches of some rows."""
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with (pa.ipc.new_file if is_file else pa.ipc.new_stream)(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=batch_rows)
    return sink.getvalue()


def check_columns(content: bytes, columns: tuple[str, ...], whole: list[dict[str, object]]) -> None:
    """Compares the samples of these columns with the whole ones."""
    part = samples(ArrowIPC(columns=columns), {"a.arrow": content})
    kept = [name for name in whole[0] if any(name == one or name.startswith(f"{one}.") for one in columns)]
    assert len(part) == len(whole)
    for found, wanted in zip(part, whole, strict=True):
        assert [*found] == kept
        assert all(np.array_equal(found[name], wanted[name]) for name in kept), (found, wanted)


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
@pytest.mark.parametrize("is_file", [True, False])
def test_each_column_is_that_of_a_whole_read(compression: str | None, is_file: bool):
    """An Arrow column of any type that is read alone has the values of a whole read, compressed or not."""
    content = written(TABLE, compression, is_file=is_file)
    whole = samples(ArrowIPC(), {"a.arrow": content})
    for columns in (*((name,) for name in TABLE.column_names), ("struct.other",), ("view", "flag"), ("word", "number")):
        check_columns(content, columns, whole)


@pytest.mark.parametrize("examples", [15, pytest.param(400, marks=pytest.mark.formats)])
def test_columns_of_drawn_files(examples: int):
    """Columns chosen from files that differ in columns and types have the values of a whole read."""

    @given(drawn=drawn_tables(), ending=st.sampled_from([arrow, arrow_stream]), draw=st.data())
    @settings(max_examples=examples)
    def check(drawn, ending, draw: st.DataObject) -> None:
        objects = {f"{number}.arrow": ending(table) for number, table in enumerate(drawn[1])}
        try:
            whole = samples(ArrowIPC(), objects)
        except RecodeError:
            # A list of integers has a null in it.
            return
        names = [spec.name for spec in facts_of(find(ArrowIPC(), objects)).fields]
        chosen = draw.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
        part = samples(ArrowIPC(columns=tuple(chosen)), objects)
        assert len(part) == len(whole)
        for found, wanted in zip(part, whole, strict=True):
            assert found.keys() == {*chosen}
            # Texts, because NaN is not equal to itself.
            assert all(str(found[name]) == str(wanted[name]) for name in chosen), (found, wanted)

    check()


def fetched_bytes(chosen: Format, content: bytes) -> int:
    """Returns the bytes of all ranges."""
    return sum(block.fetch_bytes for _, blocks in find(chosen, {"a.arrow": content}).items for block in blocks)


def test_bytes_of_other_columns_are_not_fetched():
    """A column of labels beside images fetches its own bytes and the headers of the batches."""
    table = pa.table({"label": pa.array(range(1000)), "image": pa.array([bytes(10_000)] * 1000)})
    content = written(table, None, is_file=True, batch_rows=100)
    narrow = ArrowIPC().narrow(facts_of(find(ArrowIPC(), {"a.arrow": content})), ["label"])
    assert narrow.options == {"columns": ("label",)}
    assert fetched_bytes(narrow, content) < 20_000
    assert fetched_bytes(ArrowIPC(), content) > 10_000_000
    with pytest.raises(ConfigError, match="columns=nope: no such field; it has label, image"):
        find(ArrowIPC(columns=("nope",)), {"a.arrow": content})


def test_columns_of_damaged_batches():
    """Damaged headers of Arrow batches raise no error but RecodeError."""
    content = bytearray(written(TABLE, None, is_file=False))
    chosen = ArrowIPC(columns=("list", "view"))
    found = find(chosen, {"a.arrow": bytes(content)})
    ((_, (block,)),) = found.items
    good = block_bytes(block, bytes(content))
    draw = random.Random(7)
    refused = 0
    for _ in range(150):
        bad = bytearray(good)
        bad[draw.randrange(700)] ^= 1 << draw.randrange(8)
        try:
            recode(chosen, found, block, bytes(bad))
        except RecodeError:
            refused += 1
    assert refused > 20


# ---------------------------------------------------------------- schemas of files


def test_files_of_other_schemas_with_many_batches():
    """The hint of a file with another schema has this schema alone, and not the places of its batches."""
    first = pa.table({"a": pa.array(range(4000))})
    second = pa.table({"a": pa.array(range(4000)), "b": pa.array(["x"] * 4000)})
    objects = {
        "0.arrow": written(first, None, is_file=True, batch_rows=1),
        "1.arrow": written(second, None, is_file=True, batch_rows=1),
    }
    found = find(ArrowIPC(), objects)
    assert max(len(block.hint) for _, blocks in found.items for block in blocks) < 2000
    rows = samples(ArrowIPC(), objects)
    assert [row["b"] for row in rows] == [None] * 4000 + ["x"] * 4000


def test_schemas_that_are_too_long_are_named():
    """A file whose other schema is longer than 64 KiB, which each block would carry, is refused by name."""
    columns = {f"a column with a rather long name {number}": [1] for number in range(1000)}
    objects = {"0.arrow": arrow(pa.table({"x": [1]})), "1.arrow": arrow(pa.table(columns))}
    with pytest.raises(ManifestError, match=r"1\.arrow has a schema of .* bytes.*write the files with one schema"):
        find(ArrowIPC(), objects)


# ---------------------------------------------------------------- lists of nothing, files without their bytes


@pytest.mark.parametrize(("chosen", "write", "ending"), [(Parquet(), parquet, "parquet"), (ArrowIPC(), arrow, "arrow")])
def test_lists_of_nulls(chosen: Format, write, ending: str):
    """A list whose items are of type null is a list of None, in a struct, too."""
    nothing = pa.list_(pa.null())
    table = pa.table(
        {
            "x": pa.array([[None, None], None, []], nothing),
            "s": pa.array([{"p": [None], "q": 1}, None, {"p": None, "q": 2}], pa.struct([("p", nothing), ("q", "i8")])),
        }
    )
    rows = samples(chosen, {f"a.{ending}": write(table)})
    assert [row["s.p"] for row in rows] == [[None], None, None]
    assert [row["s.q"] for row in rows] == [1, None, 2]
    assert rows[0]["x"] == [None, None]
    assert rows[1]["x"] is None
    assert len(rows[2]["x"]) == 0  # type: ignore[arg-type]


def of_hugging_face(table: pa.Table, features: dict[str, object]) -> pa.Table:
    """Returns the table with a description of its columns, as datasets writes it."""
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def write_png() -> bytes:
    """Returns the bytes of an image of one pixel."""
    sink = io.BytesIO()
    Image.new("RGB", (1, 1)).save(sink, "png")
    return sink.getvalue()


PNG = write_png()
FILE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


@pytest.mark.parametrize(("chosen", "write", "ending"), [(Parquet, parquet, "parquet"), (ArrowIPC, arrow, "arrow")])
@pytest.mark.parametrize("feature", ["Image", "Audio"])
def test_files_that_are_not_embedded(chosen: type[Parquet | ArrowIPC], write, ending: str, feature: str):
    """Images and sounds of datasets that have a path only are refused; their paths are a field where it is named."""
    rows = [{"bytes": PNG, "path": "0.jpg"}, None, {"bytes": None, "path": "folder/2.jpg"}]
    features = {"x": {"_type": feature}, "label": {"dtype": "int64", "_type": "Value"}}
    table = of_hugging_face(pa.table({"x": pa.array(rows, FILE), "label": [0, 1, 2]}), features)
    objects = {f"a.{ending}": write(table)}
    with pytest.raises(RecodeError, match=r"field 'x': row 2 of 3 has no bytes.*embed.*x\.path in columns="):
        samples(chosen(), objects)
    found = samples(chosen(columns=("label", "x.path")), objects)
    assert found == [{"label": n, "x.path": path} for n, path in enumerate(["0.jpg", None, "folder/2.jpg"])]
    whole = {f"a.{ending}": write(table.slice(0, 2))}
    values = [row["x"] for row in samples(chosen(columns=("x",)), whole)]
    assert values[1] is None
    assert values[0] == PNG if feature == "Audio" else values[0].shape == (1, 1, 3)  # type: ignore[attr-defined]
    both = samples(chosen(columns=("x", "x.path")), whole)
    assert [row["x.path"] for row in both] == ["0.jpg", None]
    assert [sorted(row) for row in samples(chosen(), whole)] == [["label", "x"]] * 2


@pytest.mark.parametrize(("chosen", "write", "ending"), [(Parquet(), parquet, "parquet"), (ArrowIPC(), arrow, "arrow")])
def test_files_in_lists_that_are_not_embedded(chosen: Format, write, ending: str):
    """Images of datasets in lists are refused where they have a path only."""
    features = {"x": {"_type": "List", "feature": {"_type": "Image"}}}
    good = pa.table({"x": pa.array([[{"bytes": PNG, "path": "0.jpg"}, None], None], pa.list_(FILE))})
    bad = pa.table({"x": pa.array([[{"bytes": None, "path": "0.jpg"}]], pa.list_(FILE))})
    assert len(samples(chosen, {f"a.{ending}": write(of_hugging_face(good, features))})) == 2
    with pytest.raises(RecodeError, match="field 'x': row 0 of 1 has no bytes"):
        samples(chosen, {f"a.{ending}": write(of_hugging_face(bad, features))})


def test_images_that_are_texts():
    """A column of paths that datasets describes as images has the paths."""
    table = of_hugging_face(pa.table({"x": ["a.jpg", None]}), {"x": {"_type": "Image"}})
    assert samples(Parquet(), {"a.parquet": parquet(table)}) == [{"x": "a.jpg"}, {"x": None}]
