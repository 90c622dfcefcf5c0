"""Nested values of any type are what pyarrow's `to_pylist` says, from Parquet and from Arrow."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.decode import SampleDecoder
from streamer.formats import ArrowIPC, Parquet
from streamer.formats.base import Format, SampleName
from tests.formats.cases import block_bytes, facts_of, find, recode

_PLAIN = {
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=5),
    # None of them begins as a picture.
    pa.binary(): st.binary(max_size=40).map(b"x".__add__),
    pa.binary(3): st.binary(min_size=3, max_size=3),
}


def _wider(kinds: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    structs = st.lists(kinds, min_size=1, max_size=3).map(lambda all_: pa.struct(list(zip("abc", all_, strict=False))))
    maps = st.builds(pa.map_, st.sampled_from([pa.string(), pa.int64(), pa.binary()]), kinds)
    return kinds.map(pa.list_) | structs | maps


KINDS = st.recursive(st.sampled_from(list(_PLAIN)), _wider, max_leaves=5)


def values_of(kind: pa.DataType, *, null: bool = True) -> st.SearchStrategy[object]:
    if kind in _PLAIN:
        found = _PLAIN[kind]
    elif pa.types.is_map(kind):
        keys = values_of(kind.key_type, null=False)
        found = st.dictionaries(keys, values_of(kind.item_type), max_size=3).map(lambda made: list(made.items()))
    elif pa.types.is_struct(kind):
        found = st.fixed_dictionaries({part.name: values_of(part.type) for part in kind})
    else:
        found = st.lists(values_of(kind.value_type), max_size=4)
    return st.none() | found if null else found


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    kind = pa.list_(pa.struct([("x", draw(KINDS))]))
    rows = draw(st.lists(values_of(kind), min_size=1, max_size=8))
    return pa.table({"value": pa.array(rows, kind)})


def _parquet(table: pa.Table) -> bytes:
    written = io.BytesIO()
    pq.write_table(table, written, row_group_size=3)
    return written.getvalue()


def _arrow(table: pa.Table) -> bytes:
    written = io.BytesIO()
    with pa.ipc.new_file(written, table.schema) as file:
        file.write_table(table.slice(1), max_chunksize=3)
    return written.getvalue()


def _read(chosen: Format, content: bytes) -> list[object]:
    found = find(chosen, {f"a.{chosen.name}": content})
    opener, decode, samples = chosen.opener(facts_of(found)), SampleDecoder(), []
    for _, blocks in found.items:
        for block in blocks:
            for record in recode(chosen, found, block, block_bytes(block, content)):
                _, fields = opener.open(memoryview(record), SampleName())
                samples.append(_listed(decode("", fields)["value"]))
    return samples


def _listed(value: object) -> object:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, list):
        return [_listed(each) for each in value]
    return {name: _listed(each) for name, each in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize(("chosen", "write", "skipped"), [(Parquet(), _parquet, 0), (ArrowIPC(), _arrow, 1)])
@given(table=tables())
def test_values_are_those_of_pyarrow(chosen, write, skipped, table):
    """Nested values read from Parquet and Arrow equal pyarrow's `to_pylist`, with nulls at every level and empty lists.
    Parts of larger batches are included; arrays are compared as lists.
    """
    expected = table.column("value").to_pylist(maps_as_pydicts="strict")[skipped:]
    assert _read(chosen, write(table)) == expected
