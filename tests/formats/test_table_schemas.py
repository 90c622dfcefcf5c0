"""Tables in files of several schemas, compared with pyarrow's reading under the unified one: rows, or a refusal."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import io
import math
from base64 import b64encode
from collections.abc import Mapping, Sequence
from itertools import pairwise, permutations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamer.decode.dispatch import SampleDecoder
from streamer.errors import ConfigError, ManifestError, RecodeError
from streamer.formats.base import Format, SampleName
from streamer.tables.arrow_ipc.format import ArrowIPC
from streamer.tables.parquet import pages
from streamer.tables.parquet.format import Parquet
from tests.formats.cases import MemoryStore, block_bytes, built, facts_of, find, recode

WHEN = datetime.datetime(2024, 5, 17, 12, 30, 15, 123000)  # noqa: DTZ001 - as the column has it

EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001


def parquet(table: pa.Table, **options: object) -> bytes:
    """Returns the bytes of a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def arrow(table: pa.Table) -> bytes:
    """Returns the bytes of an Arrow file."""
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def samples(chosen: Format, objects: Mapping[str, bytes]) -> list[dict[str, object]]:
    """Returns the samples of files, in order."""
    found = find(chosen, objects)
    opener, decoder, rows = chosen.opener(facts_of(found)), SampleDecoder(), []
    for source, blocks in found.items:
        content = objects[source.key]
        for block in blocks:
            for record in recode(chosen, found, block, block_bytes(block, content)):
                _, fields = opener.open(memoryview(record), SampleName())
                row = decoder("", fields)
                row.pop("__key__", None)
                rows.append(row)
    return rows


# ---------------------------------------------------------------- units


UNITS = [
    pa.timestamp("ms"),
    pa.timestamp("us"),
    pa.timestamp("ns"),
    pa.timestamp("us", "UTC"),
    pa.int64(),
    pa.duration("us"),
    pa.duration("ms"),
    pa.time64("us"),
    pa.time64("ns"),
    pa.uint64(),
]
NARROW = [pa.date32(), pa.time32("ms"), pa.int32(), pa.uint32(), pa.int16()]


WRAPS = [lambda kind: kind, pa.list_, lambda kind: pa.struct([("part", kind)])]


def check_units(chosen: Format, first: pa.DataType, second: pa.DataType) -> None:
    """Checks that two files whose columns are of these types are refused with the names of both."""
    written, ending = {"parquet": (parquet, "parquet"), "arrow": (arrow, "arrow")}[chosen.name]
    tables = [pa.table({"x": pa.array([None, None], kind)}) for kind in (first, second)]
    objects = {f"{name}.{ending}": written(table) for name, table in zip("ab", tables, strict=True)}
    with pytest.raises(ManifestError, match=r"/b\.\w+ has .*/a\.\w+"):
        find(chosen, objects)


@pytest.mark.parametrize("chosen", [Parquet(), ArrowIPC()], ids=["parquet", "arrow"])
def test_units_are_never_mixed(chosen: Format):
    """Files whose numbers have other units, zones or signs are refused with the names of both."""
    for kinds in (UNITS, NARROW):
        for number, (first, second) in enumerate(pairwise(kinds)):
            check_units(chosen, WRAPS[number % 3](first), WRAPS[number % 3](second))


@pytest.mark.formats
@pytest.mark.parametrize("chosen", [Parquet(), ArrowIPC()], ids=["parquet", "arrow"])
@pytest.mark.parametrize("wrap", WRAPS, ids=["column", "list", "struct"])
def test_no_two_units_are_mixed(chosen: Format, wrap):
    """Any two files whose units, zones or signs differ are refused, for each pair and in lists and structs."""
    for kinds in (UNITS, NARROW):
        for first, second in permutations(kinds, 2):
            check_units(chosen, wrap(first), wrap(second))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (pa.string(), pa.binary()),
        (pa.binary(16), pa.binary()),
        (pa.uuid(), pa.binary(16)),
        (pa.float16(), pa.binary(2)),
        (pa.float32(), pa.float64()),
        (pa.list_(pa.int32()), pa.int32()),
        (pa.struct([("a", pa.int32())]), pa.int32()),
        (pa.list_(pa.string()), pa.list_(pa.binary())),
        (pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.timestamp("us"))),
        (pa.decimal128(9, 2), pa.float64()),
    ],
)
def test_layouts_that_are_alike_are_told_apart(first: pa.DataType, second: pa.DataType):
    """Columns of types whose bytes are alike are refused, and not read as one another."""
    objects = {
        name: parquet(pa.table({"x": pa.array([None], kind)}))
        for name, kind in (("a.parquet", first), ("b.parquet", second))
    }
    with pytest.raises(ManifestError, match=r"b\.parquet has a column 'x\S*' that is .*a\.parquet"):
        samples(Parquet(), objects)


BOTH = pytest.mark.parametrize(
    ("chosen", "write", "ending"), [(Parquet(), parquet, "parquet"), (ArrowIPC(), arrow, "arrow")]
)


@BOTH
def test_scales_of_decimals_are_those_of_each_file(chosen: Format, write, ending: str):
    """Decimals are right whatever the scale of each file, in Parquet and Arrow."""
    values = [decimal.Decimal("1.5"), decimal.Decimal("-20.25")]
    tables = [pa.table({"x": pa.array(values, kind)}) for kind in (pa.decimal128(9, 2), pa.decimal128(30, 10))]
    found = samples(chosen, {f"{n}.{ending}": write(table) for n, table in enumerate(tables)})
    assert [row["x"] for row in found] == [1.5, -20.25] * 2


def test_dictionaries_of_each_file():
    """An Arrow column may have a dictionary in some files, with indexes of any width."""
    words = ["en", "de", None, "en"]
    kinds = [pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.string()), pa.string()]
    tables = [pa.table({"x": pa.array(words, pa.string()).cast(kind)}) for kind in kinds]
    found = samples(ArrowIPC(), {f"{n}.arrow": arrow(table) for n, table in enumerate(tables)})
    assert [row["x"] for row in found] == words * 3


# ---------------------------------------------------------------- shapes


@BOTH
def test_tensors_keep_their_shape(chosen: Format, write, ending: str):
    """A column of tensors of one shape delivers arrays of it, in a struct and with nulls, too."""
    array = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(24, dtype=np.float32).reshape(4, 2, 3))
    with_null = pa.ExtensionArray.from_storage(array.type, array.storage.take(pa.array([0, None, 2, 3])))
    table = pa.table({"x": array, "y": with_null, "s": pa.StructArray.from_arrays([array], ["x"])})
    found = samples(chosen, {f"a.{ending}": write(table)})
    for name in ("x", "s.x"):
        assert np.array_equal([row[name] for row in found], np.arange(24).reshape(4, 2, 3))
    assert found[1]["y"] is None
    assert found[2]["y"].tolist() == [[12, 13, 14], [15, 16, 17]]


@BOTH
def test_tensors_of_other_orders_are_refused(chosen: Format, write, ending: str):
    """Tensors with permuted dimensions, and files whose tensors differ in shape, are refused."""
    kind = pa.fixed_shape_tensor(pa.int64(), (2, 3), permutation=[1, 0])
    storage = pa.array([list(range(6))], pa.list_(pa.int64(), 6))
    permuted = pa.table({"x": pa.ExtensionArray.from_storage(kind, storage)})
    shapes = [
        pa.table({"x": pa.FixedShapeTensorArray.from_numpy_ndarray(np.zeros((1, *shape)))})
        for shape in ((2, 3), (3, 2))
    ]
    with pytest.raises(ManifestError, match="permuted"):
        samples(chosen, {f"a.{ending}": write(permuted)})
    with pytest.raises(ManifestError, match=rf"/b\.{ending} has .*a\.{ending}"):
        samples(chosen, {f"{name}.{ending}": write(table) for name, table in zip("ab", shapes, strict=True)})


# ---------------------------------------------------------------- schemas that grow


LEAVES = st.sampled_from(
    [pa.int64(), pa.int32(), pa.float32(), pa.string(), pa.bool_(), pa.binary(), pa.timestamp("us"), pa.uint64()]
)
KINDS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
        st.dictionaries(st.sampled_from("pqr"), inner, min_size=1, max_size=3).map(
            lambda parts: pa.struct([*parts.items()])
        ),
    ),
    max_leaves=4,
)


def reduced(draw: st.DrawFn, kind: pa.DataType) -> pa.DataType:
    """Draws a type that has no more than this one: some parts are missing, or have no values."""
    if draw(st.integers(0, 5)) == 0:
        return pa.null()
    if pa.types.is_struct(kind):
        kept = [field for field in kind if draw(st.booleans())] or [kind.field(0)]
        return pa.struct([(field.name, reduced(draw, field.type)) for field in kept])
    if pa.types.is_list(kind):
        return pa.list_(pa.field(draw(st.sampled_from(["item", "element"])), reduced(draw, kind.value_type)))
    return kind


def value_of(draw: st.DrawFn, kind: pa.DataType) -> object:
    """Draws a value of a type, or None."""
    if pa.types.is_null(kind) or draw(st.integers(0, 4)) == 0:
        return None
    if pa.types.is_struct(kind):
        return {field.name: value_of(draw, field.type) for field in kind}
    if pa.types.is_map(kind):
        return [(key, value_of(draw, kind.item_type)) for key in draw(st.lists(st.sampled_from("xyz"), unique=True))]
    if pa.types.is_list(kind):
        return [value_of(draw, kind.value_type) for _ in range(draw(st.integers(0, 3)))]
    if pa.types.is_floating(kind):
        return draw(st.floats(-100, 100, width=32))
    if pa.types.is_string(kind):
        return draw(st.text("aé", max_size=3))
    if pa.types.is_binary(kind):
        # The beginning of no image.
        return b"." + draw(st.binary(max_size=3))
    if pa.types.is_boolean(kind):
        return draw(st.booleans())
    if pa.types.is_timestamp(kind):
        return WHEN + datetime.timedelta(microseconds=draw(st.integers(0, 10**6)))
    return draw(st.integers(0, 2**31 - 1))


@st.composite
def drawn_tables(draw: st.DrawFn) -> tuple[pa.Schema, list[pa.Table]]:
    """Draws a schema, and tables that have no more than it."""
    kinds = draw(st.dictionaries(st.sampled_from("abcd"), KINDS, min_size=1, max_size=4))
    tables = []
    for _ in range(draw(st.integers(2, 4))):
        names = [name for name in draw(st.permutations([*kinds])) if draw(st.integers(0, 3))] or [next(iter(kinds))]
        fields = [pa.field(name, reduced(draw, kinds[name])) for name in names]
        rows = draw(st.integers(0, 3))
        columns = [pa.array([value_of(draw, field.type) for _ in range(rows)], field.type) for field in fields]
        tables.append(pa.Table.from_arrays(columns, schema=pa.schema(fields)))
    return pa.schema([pa.field(name, kind) for name, kind in kinds.items()]), tables


def wanted_value(value: object, kind: pa.DataType) -> object:
    """Returns a value of pyarrow, as `docs/formats.md` says it is delivered inside of others."""
    if value is None:
        return None
    if pa.types.is_timestamp(kind):
        return (value - EPOCH) // datetime.timedelta(microseconds=1)  # type: ignore[operator]
    if pa.types.is_struct(kind):
        return {field.name: wanted_value(value.get(field.name), field.type) for field in kind}  # type: ignore[attr-defined]
    if pa.types.is_map(kind):
        return {key: wanted_value(item, kind.item_type) for key, item in value}  # type: ignore[attr-defined]
    if pa.types.is_list(kind):
        return [wanted_value(item, kind.value_type) for item in value]  # type: ignore[attr-defined]
    return value


def wanted_fields(row: Mapping[str, object], fields: Sequence[pa.Field], prefix: str = "") -> dict[str, object]:
    """Returns the fields of a row: parts of structs are fields of their own."""
    found: dict[str, object] = {}
    for field in fields:
        value, name = row.get(field.name), f"{prefix}{field.name}"
        if pa.types.is_struct(field.type):
            found |= wanted_fields(value or {}, [*field.type], f"{name}.")  # type: ignore[arg-type]
        else:
            found[name] = wanted_value(value, field.type)
    return found


def is_same(found: object, wanted: object) -> bool:
    """Returns whether values are equal; a null among floats of an array is NaN."""
    if isinstance(found, np.ndarray):
        found = found.tolist()
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(is_same, found, wanted))
    if isinstance(found, dict) and isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(is_same(found[key], wanted[key]) for key in found)
    if isinstance(found, float) and math.isnan(found):
        return wanted is None
    return found == wanted


def unified(tables: Sequence[pa.Table]) -> pa.Schema:
    """Returns the schema that tables with rows have together, as pyarrow unifies it."""
    found: dict[str, pa.DataType] = {}
    for table in [table for table in tables if table.num_rows] or list(tables[:1]):
        for field in table.schema:
            found[field.name] = joined(found[field.name], field.type) if field.name in found else field.type
    return pa.schema([*found.items()])


def joined(one: pa.DataType, two: pa.DataType) -> pa.DataType:
    """Returns the type that has what either has."""
    if pa.types.is_null(one) or pa.types.is_null(two):
        return two if pa.types.is_null(one) else one
    if pa.types.is_struct(one):
        parts = {field.name: field.type for field in one}
        for field in two:
            parts[field.name] = joined(parts[field.name], field.type) if field.name in parts else field.type
        return pa.struct([*parts.items()])
    if pa.types.is_list(one):
        return pa.list_(joined(one.value_type, two.value_type))
    return one


def arrow_stream(table: pa.Table) -> bytes:
    """Returns the bytes of an Arrow stream."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def check_drawn(
    drawn: tuple[pa.Schema, list[pa.Table]], options: Mapping[str, object], ending: str = "parquet"
) -> None:
    """Compares the samples of drawn tables with the rows under the unified schema."""
    _, tables = drawn
    written = {"parquet": lambda table: parquet(table, **options), "arrow": arrow, "stream.arrow": arrow_stream}[ending]
    objects = {f"{number}.{ending}": written(table) for number, table in enumerate(tables)}
    whole = unified(tables)
    rows = [row for table in tables for row in table.to_pylist()]
    wanted = [wanted_fields(row, [*whole]) for row in rows]
    if any(is_refused(row.get(field.name), field.type) for row in rows for field in whole):
        with pytest.raises(RecodeError, match="has a null in it"):
            samples(Parquet() if ending == "parquet" else ArrowIPC(), objects)
        return
    found = samples(Parquet() if ending == "parquet" else ArrowIPC(), objects)
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.keys() == other.keys(), (one, other)
        assert all(is_same(one[name], other[name]) for name in other), (one, other, whole)


def is_refused(value: object, kind: pa.DataType) -> bool:
    """Returns whether a field is a list of integers with a null in it."""
    if value is None:
        return False
    if pa.types.is_struct(kind):
        return any(is_refused(value.get(field.name), field.type) for field in kind)  # type: ignore[attr-defined]
    if not pa.types.is_list(kind):
        return False
    item = kind.value_type
    is_whole = pa.types.is_integer(item) or pa.types.is_boolean(item) or pa.types.is_timestamp(item)
    return is_whole and None in value  # type: ignore[operator]


@given(drawn=drawn_tables())
@settings(max_examples=15)
def test_columns_of_all_files_are_fields(drawn: tuple[pa.Schema, list[pa.Table]]):
    """Columns of all Parquet files are fields, however the files differ: None where a file has no value."""
    check_drawn(drawn, {})


@pytest.mark.formats
@given(drawn=drawn_tables(), version=st.sampled_from(["1.0", "2.0"]), index=st.booleans(), groups=st.integers(1, 3))
@settings(max_examples=400)
def test_columns_of_all_files_are_fields_in_many_layouts(
    drawn: tuple[pa.Schema, list[pa.Table]], version: str, index: bool, groups: int
):
    """Columns of all Parquet files are fields in pages of both versions, with indexes and several row groups, too."""
    check_drawn(drawn, {"data_page_version": version, "write_page_index": index, "row_group_size": groups})


@pytest.mark.parametrize("examples", [15, pytest.param(400, marks=pytest.mark.formats)])
def test_columns_of_all_arrow_files_are_fields(examples: int):
    """Columns of all Arrow files and streams are fields, however they differ: None where one has no value."""

    @given(drawn=drawn_tables(), ending=st.sampled_from(["arrow", "stream.arrow"]))
    @settings(max_examples=examples)
    def check(drawn: tuple[pa.Schema, list[pa.Table]], ending: str) -> None:
        check_drawn(drawn, {}, ending)

    check()


@given(drawn=drawn_tables(), order=st.randoms(use_true_random=False))
@settings(max_examples=10)
def test_fields_do_not_depend_on_the_names_of_files(drawn: tuple[pa.Schema, list[pa.Table]], order):
    """Fields and their kinds do not depend on which file comes first."""
    contents = [parquet(table) for table in drawn[1] if table.num_rows]
    if not contents:
        return
    shuffled = order.sample(contents, len(contents))
    kinds = [
        {
            spec.name: spec.kind
            for spec in facts_of(find(Parquet(), {f"{n}.parquet": c for n, c in enumerate(each)})).fields
        }
        for each in (contents, shuffled)
    ]
    assert kinds[0] == kinds[1]


def test_required_columns_are_those_that_are_optional():
    """A required column of one file and an optional one of another are the same field."""
    schema = pa.schema([pa.field("x", pa.int64(), nullable=False)])
    found = samples(
        Parquet(), {"a.parquet": parquet(pa.table({"x": [1]})), "b.parquet": parquet(pa.table({"x": [2]}, schema))}
    )
    assert found == [{"x": 1}, {"x": 2}]


def test_pages_without_rows(monkeypatch: pytest.MonkeyPatch):
    """A row group with pages of no rows, as pyarrow writes for repeated columns, is cut into blocks and read whole."""
    monkeypatch.setattr(pages, "_MAX_EXTRA", 100)
    values = [[["x" * 3000 + str(number)], []] for number in range(20)] + [[[], []]]
    table = pa.table({"x": pa.array(values, pa.list_(pa.list_(pa.string()))), "n": list(range(21))})
    content = parquet(table, write_page_index=True, max_rows_per_page=1, data_page_size=1, compression="none")
    found = find(Parquet(), {"a.parquet": content}, chunk_bytes=8 << 10)
    ((_, blocks),) = found.items
    assert len(blocks) > 3
    opener, decoder = Parquet().opener(facts_of(found)), SampleDecoder()
    records = [one for block in blocks for one in recode(Parquet(), found, block, block_bytes(block, content))]
    rows = [decoder("", opener.open(memoryview(record), SampleName())[1]) for record in records]
    assert [row["x"] for row in rows] == values


@BOTH
def test_maps_with_a_key_twice(chosen: Format, write, ending: str):
    """A map with a key twice is refused, because a dict would have one of its values."""
    kind = pa.map_(pa.string(), pa.int64())
    good = pa.table({"m": pa.array([[("a", 1), ("b", 2)], None, [("a", 3)]], kind)})
    assert [row["m"] for row in samples(chosen, {f"a.{ending}": write(good)})] == [{"a": 1, "b": 2}, None, {"a": 3}]
    bad = pa.table({"m": pa.array([[("a", 1)], [("b", 1), ("a", 2), ("b", 3)]], kind)})
    with pytest.raises(RecodeError, match="field 'm': a map has the key 'b' twice"):
        samples(chosen, {f"a.{ending}": write(bad)})


@BOTH
def test_lists_of_one_length_that_are_null(chosen: Format, write, ending: str):
    """A null list of fixed length is None, also where its slots have numbers, and in a struct."""
    pair = pa.list_(pa.int64(), 2)
    slots = pa.FixedSizeListArray.from_arrays(pa.array([1, 2, 7, 8]), 2, mask=pa.array([False, True]))
    parts = pa.array([{"p": [1, 2]}, {"p": None}], pa.struct([("p", pair)]))
    rows = samples(chosen, {f"a.{ending}": write(pa.table({"x": slots, "s": parts}))})
    assert [rows[0][name].tolist() for name in ("x", "s.p")] == [[1, 2]] * 2  # type: ignore[attr-defined]
    assert [rows[1][name] for name in ("x", "s.p")] == [None, None]


@BOTH
def test_two_columns_of_one_name(chosen: Format, write, ending: str):
    """A file with two columns of one name is refused, and not called damaged."""
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    with pytest.raises(ManifestError, match=r"a\.\w+ has two columns of the same name among x, x") as caught:
        samples(chosen, {f"a.{ending}": write(table)})
    assert "is damaged" not in str(caught.value)


@BOTH
def test_texts_that_are_json(chosen: Format, write, ending: str):
    """A column of Arrow's JSON extension type is decoded, in Parquet and Arrow; other texts are not."""
    table = pa.table({"x": pa.array(['{"a": [1]}', None], pa.json_()), "y": ["{}", "1"]})
    rows = samples(chosen, {f"a.{ending}": write(table)})
    assert rows == [{"x": {"a": [1]}, "y": "{}"}, {"x": None, "y": "1"}]


def test_integers_of_128_bits():
    """A column of 128-bit integers is refused by name, and the other columns can be read.

    polars writes them as bytes and Arrow's schema beside them, which pyarrow refuses.
    """
    message = pa.schema([("x", pa.int64()), ("n", pa.int8())]).serialize().to_pybytes()
    wide = message.replace((64).to_bytes(4, "little"), (128).to_bytes(4, "little"))
    table = pa.table({"x": pa.array([bytes(16), None], pa.binary(16)), "n": pa.array([1, 2], pa.int8())})
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({"ARROW:schema": b64encode(wide)})
    content = sink.getvalue()
    with pytest.raises(pa.ArrowNotImplementedError, match="more than 64 bits"):
        pq.read_table(io.BytesIO(content))
    with pytest.raises(ManifestError, match="a column 'x' of integers of 128 bits"):
        samples(Parquet(), {"a.parquet": content})
    assert samples(Parquet(columns=("n",)), {"a.parquet": content}) == [{"n": 1}, {"n": 2}]


# ---------------------------------------------------------------- files that are added


async def check_added(chosen: Format, first: Mapping[str, bytes], then: Mapping[str, bytes], root: Path) -> set[str]:
    """Compares an index that goes on from an earlier one with a fresh one; returns the names of the files it reads."""
    known = await built(chosen, MemoryStore(first), root / "known")
    fresh = await built(chosen, MemoryStore(then), root / "fresh")
    store = MemoryStore(then)
    found = await built(chosen, store, root / "known", known=[known])
    assert found.digest == fresh.digest
    return {extent.object.url.rpartition("/")[2] for extent in store.reads}


async def test_a_refresh_reads_new_files_only(tmp_path: Path):
    """A refresh reads new Parquet files only, and gives the manifest of a fresh index.

    What earlier surveys have read is kept beside the manifest.
    """
    content = parquet(pa.table({"a": [1], "s": [{"x": 1, "y": None}]}))
    more = parquet(pa.table({"b": ["x"], "s": [{"y": 2, "x": 1}]}))
    first = {f"{n}.parquet": content for n in range(5)} | {"none.parquet": parquet(pa.table({"a": [1]}).slice(0, 0))}
    assert await check_added(Parquet(), first, first | {"2x.parquet": content}, tmp_path / "a") == {"2x.parquet"}
    assert await check_added(Parquet(), first, first | {"3.parquet": content + content}, tmp_path / "b") == {
        "3.parquet"
    }
    # Of one that has new columns the rows of all change, and each file is read once.
    for name in ("0a.parquet", "9.parquet", "2x.parquet"):
        await check_added(Parquet(), first, first | {name: more}, tmp_path / name)
    # Without what was kept, all are read.
    known = await built(Parquet(), MemoryStore(first), tmp_path / "c")
    (tmp_path / f"c/{known.digest}.survey").write_bytes(b"of another version")
    store = MemoryStore(first)
    assert (await built(Parquet(), store, tmp_path / "d", known=[known])).digest == known.digest
    assert len(store.reads) >= len(first)


async def test_a_refresh_of_arrow_reads_new_files_only(tmp_path: Path):
    """A refresh of Arrow files reads new ones only, and the first, whose schema the manifest has."""
    first = {f"{n}.arrow": arrow(pa.table({"a": [n]})) for n in range(5)}
    read = await check_added(ArrowIPC(), first, first | {"2x.arrow": arrow(pa.table({"a": [7]}))}, tmp_path / "a")
    assert read == {"0.arrow", "2x.arrow"}
    await check_added(ArrowIPC(), first, first | {"2x.arrow": arrow(pa.table({"b": [7]}))}, tmp_path / "b")


@given(drawn=drawn_tables(), count=st.integers(1, 3), order=st.randoms(use_true_random=False))
@settings(max_examples=10)
def test_files_that_are_added_change_what_a_fresh_index_has(drawn, count: int, order, tmp_path_factory):
    """A refresh with added files gives the manifest of a fresh index, however they differ and wherever they sort."""
    contents = [parquet(table) for table in drawn[1] if table.num_rows]
    names = order.sample(range(100), len(contents))
    objects = {f"{name}.parquet": content for name, content in zip(names, contents, strict=True)}
    first = dict(order.sample([*objects.items()], min(count, len(objects))))
    if first:
        asyncio.run(check_added(Parquet(), first, objects, tmp_path_factory.mktemp("added")))


# ---------------------------------------------------------------- partitions in paths


@pytest.mark.parametrize(
    "values",
    [
        ["2023", "2024"],
        ["01", "-7"],
        ["2147483647", "2147483648"],
        ["a b", "ü/x"],
        ["1", "x"],
        [None, "5"],
        [None, "x"],
        ["+1", "2"],
        ["", "1"],
        ["1.5", "2"],
        ["true", "false"],
    ],
)
def test_partitions_are_those_of_pyarrow(values: list[str | None], tmp_path):
    """Names, types and values of partitions are those of pyarrow's Hive partitioning."""
    from urllib.parse import quote

    objects = {}
    for number, value in enumerate(values):
        text = "__HIVE_DEFAULT_PARTITION__" if value is None else quote(value, safe="")
        objects[f"k={text}/{number}.parquet"] = parquet(pa.table({"id": [number]}))
    for name, content in objects.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    wanted = ds.dataset(tmp_path, partitioning=ds.partitioning(flavor="hive")).to_table().to_pylist()
    found = samples(Parquet(), objects)
    assert sorted(found, key=lambda row: row["id"]) == sorted(wanted, key=lambda row: row["id"])


TEXTS = """
1 01 -7 -0 +1 1_0 1.5 true 1e3 2147483647 2147483648 -2147483648 %31 %2F %zz % %00 %C3%BC 1% x=y = 0x1F 0XFFFFFFFF
0x123456789 -0x1 \u0661 \u00b2 \u00fc __HIVE_DEFAULT_PARTITION__ %5F_HIVE_DEFAULT_PARTITION__ None null %FF
"""
SEGMENTS = st.one_of(
    st.sampled_from([*TEXTS.split(), "", " 1", "1 ", "a b"]),
    st.integers(-(2**33), 2**33).map(str),
    st.text("01-+ %aF=", max_size=4),
)
FOLDERS = st.lists(
    st.one_of(
        st.builds("{}={}".format, st.sampled_from(["k", "year", "%6B", "K", "a.b"]), SEGMENTS),
        st.sampled_from(["plain", "data-1"]),
    ),
    max_size=3,
)


@pytest.mark.parametrize("examples", [40, pytest.param(2000, marks=pytest.mark.formats)])
def test_any_partitions_are_those_of_pyarrow(examples: int, tmp_path_factory):
    """Partitions of drawn paths are those of pyarrow's Hive partitioning, or both refuse them."""

    @given(st.lists(FOLDERS, min_size=1, max_size=4))
    @settings(max_examples=examples)
    def check(folders: list[list[str]]) -> None:
        root = tmp_path_factory.mktemp("drawn")
        objects = {}
        for number, each in enumerate(folders):
            name = "/".join([*each, f"{number}.parquet"])
            objects[name] = parquet(pa.table({"id": [number]}))
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(objects[name])
        try:
            wanted = ds.dataset(root, partitioning=ds.partitioning(flavor="hive")).to_table().to_pylist()
        except pa.ArrowInvalid as error:
            # Where a partition is null in all paths, pyarrow does not know its type.
            if "No non-null segments" not in str(error):
                with pytest.raises(ManifestError, match="not UTF-8"):
                    samples(Parquet(), objects)
            return
        found = samples(Parquet(), objects)
        assert sorted(found, key=lambda row: row["id"]) == sorted(wanted, key=lambda row: row["id"])

    check()


@pytest.mark.parametrize("places", [(0, 0), (1, 1), (0, 1), (1, 0)])
def test_partitions_of_arrow_files(places: tuple[int, int]):
    """Partitions of Arrow files are fields as those of Parquet are, beside dictionaries and united columns, too."""
    words = pa.array(["x", "y"]).dictionary_encode()
    tables = [pa.table({"id": [1, 2]}), pa.table({"id": [3, 4], "word": words})]
    each = [tables[place] for place in places]
    objects = {f"k={n}/z=a/{n}.arrow": arrow(table) for n, table in enumerate(each)}
    names = {name for table in each for name in table.column_names}
    wanted = [
        {name: row.get(name) for name in names} | {"k": n, "z": "a"}
        for n, table in enumerate(each)
        for row in table.to_pylist()
    ]
    assert samples(ArrowIPC(), objects) == wanted
    with pytest.raises(ManifestError, match="a column 'id' and a partition 'id'"):
        samples(ArrowIPC(), {"id=1/a.arrow": arrow(tables[0])})


def test_fields_that_are_one_in_arrow():
    """A column `a.b` beside a struct `a` with a part `b` is refused, in Arrow files."""
    with pytest.raises(ManifestError, match=r"'a\.b' beside a struct"):
        samples(ArrowIPC(), {"a.arrow": arrow(pa.table({"a": [{"b": 1}], "a.b": [2]}))})


def test_a_partition_that_is_a_column_is_refused():
    """A partition that is a column, too, is refused by name; other columns can be read."""
    objects = {"year=2023/a.parquet": parquet(pa.table({"id": [1], "year": [2022]}))}
    with pytest.raises(ManifestError, match=r"column 'year' and a partition 'year'.*columns="):
        samples(Parquet(), objects)
    assert samples(Parquet(columns=("id",)), objects) == [{"id": 1}]


def test_partitions_of_names_with_an_underscore():
    """A folder `_run=1/` is a partition, and files of `_temporary/` are no samples."""
    content = parquet(pa.table({"id": [1]}))
    found = samples(
        Parquet(), {"_run=1/a.parquet": content, "_run=2/a.parquet": content, "_temporary/a.parquet": content}
    )
    assert [row["_run"] for row in found] == [1, 2]


def test_columns_that_are_partitions_only():
    """Columns are chosen among partitions, too, beside a column of the files."""
    objects = {"k=1/a.parquet": parquet(pa.table({"id": [1], "x": [2]}))}
    assert samples(Parquet(columns=("id", "k")), objects) == [{"id": 1, "k": 1}]
    assert samples(Parquet(columns=("k",)), objects) == [{"k": 1}]
    with pytest.raises(ConfigError, match="no such field; it has id, x, k"):
        samples(Parquet(columns=("nope",)), objects)
