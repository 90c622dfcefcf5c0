"""The index of Parquet (what it reads, where it cuts, what it refuses) on pyarrow's files, and records of tables."""

from __future__ import annotations

import sys
from itertools import pairwise

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamer.decode.dispatch import SampleDecoder
from streamer.errors import ConfigError, DecodeError, ManifestError, RecodeError
from streamer.formats.base import FieldSpec, SampleName
from streamer.formats.table.records import TableOpener
from streamer.formats.table.writer import Column, write_records
from streamer.tables.parquet import format as parquet_format
from streamer.tables.parquet.footer import read_footer
from streamer.tables.parquet.format import Parquet
from tests.formats.cases import block_bytes, facts_of, find, recode, records_of, run


def written(table: pa.Table, **options: object) -> bytes:
    """Returns the bytes of a file that pyarrow writes from this table."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **{"use_dictionary": ["label", "text"], **options})
    return sink.getvalue().to_pybytes()


def blocks_of(content: bytes, chunk_bytes: int, chosen: Parquet | None = None) -> list:
    """Returns the blocks of a file."""
    chosen, objects, blocks = chosen or Parquet(), {"a.parquet": content}, []
    survey = run(chosen.survey(records_of(objects), {}), objects, None, [], print)
    source = msgspec.structs.replace(survey.sources[0], chunk_bytes=chunk_bytes)
    run(chosen.index(source, survey.facts), objects, source.record, [], blocks.append)
    return blocks


def images(rows: int = 400) -> pa.Table:
    """Makes rows of 2 KB, with a label."""
    rng = np.random.default_rng(0)
    return pa.table({"image": [rng.bytes(2000) for _ in range(rows)], "label": [n % 10 for n in range(rows)]})


def test_reads_one_tail_of_each_file():
    """The survey reads the last 64 KiB of each Parquet file once, and the blocks are made without a further read."""
    content = written(images(), write_page_index=True, data_page_size=10_000)
    found = find(Parquet(), {"a.parquet": content, "b.parquet": content})
    assert [[need.stop - need.start for need in ask] for ask in found.survey_needs] == [[64 << 10] * 2]
    assert [*found.needs.values()] == [[], []]


def test_reads_a_long_footer_at_once():
    """The second read of a long footer takes what is missing of it, with 64 KiB before it."""
    content = written(pa.table({f"column {n}": [n] for n in range(1000)}))
    length = int.from_bytes(content[-8:-4], "little")
    assert length > 64 << 10
    (first,), (second,) = find(Parquet(), {"a.parquet": content}).survey_needs
    assert second.stop == first.start
    assert second.start == max(0, len(content) - 8 - length - (64 << 10))


@pytest.mark.parametrize("chunk_bytes", [30_000, 100_000, 300_000])
def test_large_row_groups_are_cut_where_pages_begin(chunk_bytes: int):
    """A large row group is cut at pages into blocks of about a chunk, which fetch at most 5 % more than the file."""
    content = written(images(), write_page_index=True, data_page_size=5000, write_batch_size=2, compression="none")
    blocks = blocks_of(content, chunk_bytes)
    sizes = [block.fetch_bytes for block in blocks]
    assert 0.5 * chunk_bytes < np.mean(sizes) < 1.5 * chunk_bytes
    assert sum(sizes) <= 1.05 * len(content)
    assert sum(block.samples for block in blocks) == 400
    assert max(len(block.ranges) for block in blocks) <= 3
    assert max(len(block.hint) for block in blocks) < 64
    assert len(blocks_of(content, 8 << 20)) == 1


@pytest.mark.parametrize("columns", [("label",), ("image", "label")])
def test_a_column_alone_is_little(columns: tuple[str, ...]):
    """A small column chosen alone fetches at most 1 % of a file's bytes."""
    content = written(images(), write_page_index=True)
    fetched = sum(block.fetch_bytes for block in blocks_of(content, 8 << 20, Parquet(columns=columns)))
    assert (fetched <= 0.01 * len(content)) == (columns == ("label",))


@pytest.mark.parametrize(
    "options",
    [{}, {"write_page_index": True, "data_page_size": 1000}, {"use_dictionary": False}],
    ids=["row groups", "pages", "no dictionary"],
)
def test_planned_bytes_are_those_of_the_records(options: dict[str, object]):
    """The planned bytes of a block's records are within 6 % for numbers, texts and lists, in dictionaries too."""
    rows = 3000
    table = pa.table(
        {
            "text": [f"the same text again, and again {n % 5}" for n in range(rows)],
            "n": list(range(rows)),
            "ids": [list(range(n % 9)) for n in range(rows)],
        }
    )
    content = written(table, **options)
    found = find(Parquet(), {"a.parquet": content})
    blocks = blocks_of(content, 20_000)
    assert sum(block.samples for block in blocks) == rows
    for block in blocks:
        made = sum(map(len, recode(Parquet(), found, block, block_bytes(block, content))))
        # The writer of pyarrow 19 is off by 5.7 %, later ones by less.
        assert made == pytest.approx(block.record_bytes, rel=0.06)


# ---------------------------------------------------------------- what is refused


def _broken_footer(content: bytes) -> bytes:
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    return content[:start] + b"\xff" * 20 + content[start + 20 :]


WHOLE = written(images(30), write_page_index=True)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "0 bytes are not a Parquet file"),
        (b"PAR1" * 2, "8 bytes are not a Parquet file"),
        (WHOLE[:-1], "not with b'PAR1'"),
        (WHOLE[: len(WHOLE) // 2], "not a Parquet file, or cut off"),
        (WHOLE[:-8] + b"\xff\xff\xff\x7fPAR1", "its footer should have 2147483647 bytes"),
        (_broken_footer(WHOLE), "in the footer, "),
        (WHOLE[:-4] + b"PARE", "is encrypted, which streamer does not read"),
        (b"PAR1" + WHOLE[-8 - int.from_bytes(WHOLE[-8:-4], "little") :], "column 'image' at bytes"),
    ],
)
def test_damaged_files(content: bytes, reason: str):
    """A damaged Parquet file is refused with its url and the reason, and is skippable unless it is encrypted."""
    with pytest.raises(ManifestError, match=reason) as caught:
        find(Parquet(), {"a.parquet": content})
    assert "a.parquet" in str(caught.value)
    assert ("reason" in caught.value.details) == ("encrypted" not in reason)


def test_a_page_index_that_contradicts_the_footer():
    """A page index that contradicts the footer is refused."""
    table = images(100)
    content = written(table, write_page_index=True, data_page_size=5000, write_batch_size=2)
    details = pq.ParquetFile(pa.BufferReader(content)).metadata.row_group(0).column(0)
    assert details.has_offset_index
    column = _first_column(content)
    start, _ = column.page_index
    broken = bytearray(content)
    # The page index is 16 bytes a page; any other number there is another place or row.
    broken[start + 12] ^= 0x41
    with pytest.raises(ManifestError, match=r"page \d+ at byte|pages up to byte|is missing|cut off|type|list|column"):
        blocks_of(bytes(broken), 20_000)


def _first_column(content: bytes):
    length = int.from_bytes(content[-8:-4], "little")
    return read_footer(content[-8 - length : -8], len(content)).groups[0].columns[0]


def test_a_large_row_group_without_page_index(monkeypatch: pytest.MonkeyPatch):
    """A row group over the limit without a page index is refused with how to write it; a smaller one is a block."""
    content = written(images(), compression="none")
    assert len(blocks_of(content, 10_000)) == 1
    monkeypatch.setattr(parquet_format, "MOST_FETCH_BYTES", 100_000)
    with pytest.raises(
        ManifestError, match=r"row group 0 has 8\d{5} bytes.*write_page_index=True or smaller row groups"
    ):
        blocks_of(content, 10_000)
    assert len(blocks_of(content, 10_000, Parquet(columns=("label",)))) == 1
    paged = written(images(), compression="none", write_page_index=True, data_page_size=5000, write_batch_size=2)
    assert max(block.fetch_bytes for block in blocks_of(paged, 90_000)) < 100_000


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"a": ["x"], "b": [1.5]}, r"column 'b' that is optional double, in \S+1\.parquet it is optional int64"),
        ({"a": [["x"]], "b": [1]}, "column 'a' that is list, in .* it is optional bytes"),
    ],
)
def test_files_of_other_columns(other: dict, reason: str):
    """Files whose columns differ in type are refused with both types; further columns and their order may differ."""
    first, second = written(pa.table({"a": ["x"], "b": [1]})), written(pa.table(other))
    with pytest.raises(ManifestError, match=reason) as caught:
        find(Parquet(), {"1.parquet": first, "2.parquet": second})
    assert caught.value.details["url"].endswith("2.parquet")
    reordered = written(pa.table({"c": [1.5], "b": [1], "a": ["x"]}))
    assert len(find(Parquet(), {"1.parquet": first, "2.parquet": reordered}).items) == 2


def test_columns_that_do_not_exist():
    """A column that the files lack is refused with the names of those that they have."""
    with pytest.raises(ConfigError, match=r"columns=lable: no such field; it has image, label"):
        find(Parquet(columns=("image", "lable")), {"a.parquet": WHOLE})


def test_a_delta_table():
    """Parquet files with a Delta log are refused, because some of them are no longer valid."""
    with pytest.raises(ManifestError, match=r"a part of a Delta table.*file_uris"):
        find(Parquet(), {"a.parquet": WHOLE, "_delta_log/00000000000000000000.json": b"{}"})


@pytest.mark.parametrize(
    ("key", "is_data"),
    [
        ("data/train-00000-of-00002.parquet", True),
        ("year=2026/part-0.snappy.PARQUET", True),
        ("a.pq", True),
        ("README.md", False),
        ("_temporary/0/part-0.parquet", False),
        ("_delta_log/00000000000000000010.checkpoint.parquet", False),
        (".hidden/a.parquet", False),
        ("_metadata", False),
    ],
)
def test_accepts(key: str, is_data: bool):
    """Parquet accepts files of data, not those of logs, hidden folders or documents."""
    assert Parquet().accepts(key) == is_data


def test_integers_with_nulls_in_a_list():
    """A null in a list of integers is refused with the way to leave it out; in a list of floats it is NaN."""
    content = written(pa.table({"a": [[1, None]], "b": [[1.0, None]]}))
    found = find(Parquet(), {"a.parquet": content})
    block = found.items[0][1][0]
    with pytest.raises(RecodeError, match=r"field 'a': a list of int64 has a null in it.*columns="):
        recode(Parquet(), found, block, block_bytes(block, content))
    chosen = Parquet(columns=("b",))
    found = find(chosen, {"a.parquet": content})
    block = found.items[0][1][0]
    (record,) = recode(chosen, found, block, block_bytes(block, content))
    _, fields = chosen.opener(facts_of(found)).open(memoryview(record), SampleName())
    assert np.isnan(SampleDecoder()("0", fields)["b"][1])


def test_without_pyarrow(monkeypatch: pytest.MonkeyPatch):
    """Without pyarrow the index works, and the recoder raises ConfigError with what to install and where."""
    found = find(Parquet(), {"a.parquet": WHOLE})
    for name in [name for name in sys.modules if name.startswith(("pyarrow", "streamer.tables.parquet.recode"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for module in ("columns", "recode"):
        monkeypatch.delitem(sys.modules, f"streamer.tables.parquet.{module}", raising=False)
    monkeypatch.delitem(sys.modules, "streamer.formats.table.writer", raising=False)
    with pytest.raises(ConfigError, match=r"in this environment .*: pip install 'streamer-data\[parquet\]'"):
        Parquet().recoder(facts_of(found))


# ---------------------------------------------------------------- records


def test_records_of_a_table():
    """Records of fixed and variable fields, nulls and keys open as they were written; damaged ones are refused."""
    fields = [FieldSpec(f"f{n}", "<i4") for n in range(8)]
    fields += [FieldSpec("__key__", "txt"), FieldSpec("raw"), FieldSpec("grid", "<f4[2,2]")]
    numbers = [Column(np.array([n, -n], "<i4")) for n in range(8)]
    keys = Column(np.frombuffer(b"onetwo", np.uint8), np.array([3, 3]))
    raw = Column(np.frombuffer(b"\xff\xd8\xff..", np.uint8), np.array([5, 0]), np.array([False, True]))
    grid = Column(np.arange(8, dtype="<f4").reshape(2, 2, 2))
    made = write_records(fields, [*numbers, keys, raw, grid], 2)
    assert made.lengths.tolist() == [2 + 8 + 32 + 16 + 3 + 5, 2 + 8 + 32 + 16 + 3]
    content = memoryview(b"".join(bytes(part) for part in made.parts))
    cuts = [0, *np.cumsum(made.lengths).tolist()]
    opened = [TableOpener(fields).open(content[a:b], SampleName()) for a, b in pairwise(cuts)]
    assert [key for key, _ in opened] == ["one", "two"]
    decode = SampleDecoder({"raw": None})
    first, second = (decode(key, found) for key, found in opened)
    assert [first[f"f{n}"] for n in range(8)] == list(range(8))
    assert first["raw"] == b"\xff\xd8\xff.."
    assert second["raw"] is None
    assert second["grid"].tolist() == [[4, 5], [6, 7]]
    assert [field.kind for field in opened[0][1]][-2:] == ["image", "<f4[2,2]"]
    for damaged in (content[: made.lengths[0] - 1], content[:20], content[: made.lengths[0] + 1]):
        with pytest.raises(DecodeError, match="a record of"):
            TableOpener(fields).open(damaged, SampleName())
