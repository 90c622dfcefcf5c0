"""Thrift's compact protocol: what is written is read again, by pyarrow too, and what is no Thrift is refused."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.formats.failures import DamagedError
from streamer.tables.parquet import thrift
from streamer.tables.parquet.thrift import read_struct, write_struct

INTEGERS = st.integers(-(2**63), 2**63 - 1)


@given(
    st.dictionaries(st.integers(1, 300), INTEGERS),
    st.lists(st.binary(max_size=40), max_size=40),
    st.lists(st.booleans(), max_size=20),
)
def test_structs_come_back(numbers, texts, flags):
    """Structs of any field numbers, with lists of any length, are read as they were written."""
    items = [{1: (thrift.TRUE, flag), 17: (thrift.BINARY, b"x")} for flag in flags]
    written = write_struct(
        {
            **{number: (thrift.I64, value) for number, value in numbers.items()},
            301: (thrift.LIST, (thrift.BINARY, texts)),
            302: (thrift.LIST, (thrift.STRUCT, items)),
        }
    )
    found, end = read_struct(written)
    assert end == len(written)
    assert {number: found.integer(number) for number in numbers} == numbers
    assert found.items(301, bytes) == texts
    assert [item.flag(1) for item in found.structs(302)] == flags
    assert all(item.binary(17) == b"x" for item in found.structs(302))


def test_pyarrow_reads_our_structs_and_we_its(tmp_path):
    """The Thrift reader reads the footer of a pyarrow file, and pyarrow reads a footer of the Thrift writer."""
    pq = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa

    pq.write_table(pa.table({"a": [1, 2], "b": ["x", None]}), tmp_path / "a.parquet")
    raw = (tmp_path / "a.parquet").read_bytes()
    footer, _ = read_struct(raw[-8 - int.from_bytes(raw[-8:-4], "little") : -8])
    assert footer.integer(3) == 2
    assert [element.binary(4) for element in footer.structs(2)] == [b"schema", b"a", b"b"]
    schema = [{4: (thrift.BINARY, b"root"), 5: (thrift.I32, 1)}, {1: (thrift.I32, 1), 4: (thrift.BINARY, b"n")}]
    ours = write_struct(
        {
            1: (thrift.I32, 2),
            2: (thrift.LIST, (thrift.STRUCT, schema)),
            3: (thrift.I64, 0),
            4: (thrift.LIST, (thrift.STRUCT, [])),
        }
    )
    file = b"PAR1" + ours + len(ours).to_bytes(4, "little") + b"PAR1"
    assert pq.read_metadata(pa.BufferReader(file)).schema.names == ["n"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "cut off"),
        (b"\x18\x7fab", "127 bytes are cut off"),
        # A struct in a struct in a struct.
        (b"\x1c" * 10_000, "nested more than 32 deep"),
        (b"\x19\x19" + b"\x19" * 10_000, "nested more than 32 deep"),
        # 2^31 items in six bytes.
        (b"\x19\xf5\xff\xff\xff\xff\x07", "a list of 2147483647 items"),
        (b"\x16" + b"\xff" * 11, "more than 64 bits"),
        (b"\x1e\x00", "type 14 is not known"),
    ],
)
def test_other_bytes(content, reason):
    """Bytes that are cut off, nested too deep, too long or of unknown types are refused at once."""
    with pytest.raises(DamagedError, match=reason):
        read_struct(content)


def test_a_field_of_another_type():
    """A field of another type or a missing one is refused by its number; a default stands for a missing integer."""
    found, _ = read_struct(write_struct({1: (thrift.I64, 5)}))
    assert found.integer(2, 7) == 7
    for ask in (found.binary, found.struct, found.structs, partial(found.items, kind=bytes), found.flag):
        with pytest.raises(DamagedError, match="field 1 is a int, not a"):
            ask(1)
    with pytest.raises(DamagedError, match="field 2 is missing"):
        found.integer(2)
