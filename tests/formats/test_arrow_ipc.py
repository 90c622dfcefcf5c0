"""Arrow files of pyarrow, polars and datasets meet the contract of the formats; how they are indexed, and refusals."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from streamer.errors import ManifestError, RecodeError
from streamer.formats import reading
from streamer.formats.base import Block
from streamer.formats.detect import detect
from streamer.tables.arrow_ipc.format import ArrowIPC
from tests.formats.cases import Case, Found, facts_of, find, read_case
from tests.formats.contract import FormatContract

URL = "s3://bucket/data/a.arrow"


class TestArrowIPC(FormatContract):
    @classmethod
    def cases(cls) -> list[Case]:
        return [
            read_case(ArrowIPC(), "arrow/huggingface", raw=["image"]),
            read_case(ArrowIPC(), "arrow/stream", raw=["picture"]),
            read_case(ArrowIPC(), "arrow/file"),
            read_case(ArrowIPC(), "arrow/feather"),
        ]


def stream(*batches: pa.RecordBatch, schema: pa.Schema | None = None, **options: object) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema or batches[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def file(*batches: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def numbers(rows: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(rows), pa.int64())})


def found_in(content: bytes) -> Found:
    return find(ArrowIPC(), {"a.arrow": content})


def blocks_in(content: bytes) -> list[Block]:
    ((_, blocks),) = found_in(content).items
    return blocks


def test_files_are_indexed_by_their_footers():
    """The index of a file of 8 MB reads start, footer and headers of batches, 200 KB; that of a stream reads all."""
    batches = [numbers(100_000)] * 10
    found = found_in(file(*batches))
    (head,), (end,) = found.survey_needs
    (heads,) = found.needs[URL]
    assert (head.start, end.stop) == (0, len(file(*batches)))
    assert len(heads) == 10
    assert sum(need.stop - need.start for need in (head, end, *heads)) < 200_000
    assert len(found.walked[URL]) == 0
    walked = found_in(stream(*batches)).walked[URL]
    assert sum(need.stop - need.start for need in walked) > 0.99 * len(stream(*batches))


def test_batches_are_jumped_over():
    """The index of a stream reads only the headers of batches that are larger than 4 MiB."""
    content = stream(*[numbers(1_000_000)] * 6)
    found = found_in(content)
    assert sum(need.stop - need.start for need in found.walked[URL]) <= 7 * reading.PROBE_BYTES
    assert [block.samples for block in blocks_in(content)] == [1_000_000] * 6


def test_a_stream_without_an_end_mark():
    """A stream without an end mark ends with its last message; one that is cut inside a message is damaged.

    A batch of no rows is no block.
    """
    content = stream(numbers(3), numbers(0), numbers(4))
    assert content.endswith(b"\xff\xff\xff\xff\0\0\0\0")
    ((block,), (same,)) = blocks_in(content[:-8]), blocks_in(content)
    assert block == same
    assert block.samples == 7
    for cut in (content[:-9], content[:-12], content[: len(content) // 2], content[:100], content[:5]):
        with pytest.raises(ManifestError, match=r"is damaged: .*at byte \d+ of \d+.*Index\(damaged='skip'\)"):
            blocks_in(cut)


def test_dictionaries_that_change():
    """Dictionaries of a stream are read where they do not change, and refused otherwise with what to do."""
    first = pa.record_batch({"word": pa.array(["a", "b"]).dictionary_encode()})
    other = pa.record_batch({"word": pa.array(["c", "b"]).dictionary_encode()})
    assert [block.samples for block in blocks_in(stream(first, first))] == [4]
    with pytest.raises(ManifestError, match="has dictionaries that change, which are not read: write it as a file"):
        blocks_in(stream(first, other))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (
            pa.dense_union([pa.field("x", pa.int32())]),
            r"a\.arrow has a column 'bad' of type number 14 .*, which is not read",
        ),
        (pa.month_day_nano_interval(), "type number 11"),
        (pa.run_end_encoded(pa.int32(), pa.int64()), "type number 22"),
        (pa.list_view(pa.int32()), "type number 25"),
    ],
)
@pytest.mark.parametrize("is_nested", [False, True])
def test_columns_that_are_not_read(kind, reason, is_nested):
    """Columns of unions, intervals, run-end encodings and list views are refused by name, inside structs, too."""
    nested = pa.struct([("bad", kind)]) if is_nested else kind
    schema = pa.schema([pa.field("bad", nested)])
    with pytest.raises(ManifestError, match=reason):
        blocks_in(stream(schema=schema))


@pytest.mark.parametrize(
    "kind", [pa.int32(), pa.uint64(), pa.string(), pa.timestamp("us"), pa.list_(pa.int64())], ids=str
)
def test_files_of_other_types(kind):
    """Files whose column has another type, of other widths too, are refused with the names of both files."""
    other = pa.record_batch({"n": pa.array([None], kind)})
    with pytest.raises(ManifestError, match=r"b\.arrow has a column 'n' that is .*, in .*a\.arrow it is .*int64"):
        find(ArrowIPC(), {"a.arrow": stream(numbers(2)), "b.arrow": stream(other)})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no bytes"),
        (b"ARROW1", "does not end with b'ARROW1'|a footer of"),
        (b"ARROW1\0\0" + bytes(20) + b"\xff\xff\xff\x7fARROW1", "a footer of 2147483647 bytes"),
        (b"ARROW1\0\0" + bytes(20) + b"\xff\0\0\0ARROW1", "a footer of 265 bytes"),
        (b"FEA1" + bytes(100), "no message begins here, or it was written before Arrow 0.15"),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff", "metadata of 4294967295 bytes"),
        (b"\xff\xff\xff\xff\x10\0\0\0" + bytes(16), "the first message is not a schema|metadata"),
        (stream(numbers(1))[:8] + b"\xff" * 40, "cut off in its schema"),
    ],
)
def test_what_is_no_arrow_file(content, reason):
    """Bytes that are no Arrow file are refused with what is wrong in them."""
    with pytest.raises(ManifestError, match=reason):
        find(ArrowIPC(), {"a.arrow": content})


@pytest.mark.parametrize(
    ("at", "layout", "value"),
    [(0, "<q", 0), (0, "<q", 1 << 40), (8, "<i", 4), (8, "<i", -8), (16, "<q", -8), (16, "<q", 8)],
)
def test_a_footer_that_lies(at, layout, value):
    """A footer whose messages overlap, lie outside the file or have another length is refused as damaged."""
    content = file(numbers(1000), numbers(1000))
    length = struct.unpack("<i", content[-10:-6])[0]
    start = len(content) - 10 - length
    place = content.index(struct.pack("<q", next(iter(blocks_in(content))).ranges[0][0]), start)
    wrong = bytearray(content)
    struct.pack_into(layout, wrong, place + at, value)
    with pytest.raises(ManifestError, match="is damaged"):
        blocks_in(bytes(wrong))


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
def test_bodies_that_lie(codec):
    """False offsets and lengths in a batch's body give as many rows or a RecodeError; other row counts are refused."""
    content = stream(pa.record_batch({"s": ["abc", "defg"] * 50}), compression=codec)
    found = found_in(content)
    ((_, (block,)),) = found.items
    recoder = ArrowIPC().recoder(facts_of(found))
    ((start, stop),) = block.ranges
    body = content[start:stop]
    refused = 0
    for at in range(len(body) - 8):
        wrong = body[:at] + b"\xff\xff\xff\x7f" + body[at + 4 :]
        try:
            assert len(recoder.recode(memoryview(wrong), 100, b"").lengths) == 100
        except RecodeError:
            refused += 1
    assert refused > len(body) // 8
    for samples, hint in ((99, b""), (101, b""), (99, b"dictionaries")):
        with pytest.raises(RecodeError, match=f"are not {samples} rows of Arrow"):
            recoder.recode(memoryview(body), samples, hint)


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()])
@pytest.mark.parametrize("nested", [False, True])
def test_a_null_view_of_negative_length(kind, nested):
    """A null view of negative length is refused, because pyarrow's cast of it ends the process by SIGSEGV.

    Found by 2,000 mutations (2026-11-23): pyarrow takes it for valid.
    """
    views = struct.pack("<iiii", -0x33000000, 0, 0, 0) + struct.pack("<i4sii", 24, b"xxxx", 0, 0)
    array = pa.Array.from_buffers(kind, 2, [pa.py_buffer(b"\x02"), pa.py_buffer(views), pa.py_buffer(b"x" * 24)])
    array.validate(full=True)
    column = pa.StructArray.from_arrays([pa.ListArray.from_arrays([0, 1, 2], array)], ["a"]) if nested else array
    content = stream(pa.record_batch({"a": column}))
    found = found_in(content)
    ((_, ((start, stop),)),) = [(source, block.ranges) for source, (block,) in found.items]
    with pytest.raises(RecodeError, match="a view of negative length"):
        ArrowIPC().recoder(facts_of(found)).recode(memoryview(content)[start:stop], 2, b"")


def test_names():
    """Arrow files are detected by their names, and the caches of datasets beside them are not samples."""
    saved = ["data-00000-of-00001.arrow", "state.json", "dataset_info.json", "cache-3fa9.arrow"]
    assert detect(saved) == "arrow"
    assert [ArrowIPC().accepts(key) for key in (*saved, "x.feather", "x.ipc")] == [True, *[False] * 3, True, True]
