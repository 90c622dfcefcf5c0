"""The layout of an Arrow IPC stream: where each buffer lies, and which streams are refused."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from streamer.errors import ManifestCorruptError
from streamer.manifest.arrow_ipc.reader import read_layout
from streamer.manifest.arrow_ipc.writer import write_table


@pytest.fixture
def raw(tmp_path):
    """Writes a table of two columns of numbers, and returns its bytes."""
    write_table(tmp_path / "t", {"a": np.arange(3, dtype=np.int64), "b": np.arange(3, dtype=np.uint32)})
    return (tmp_path / "t").read_bytes()


def test_names_types_and_places(raw):
    """`read_layout` returns the rows, names and types of a stream and where each buffer lies."""
    layout = read_layout(raw, "t")
    assert (layout.rows, [(f.name, f.kind) for f in layout.fields]) == (3, [("a", "int64"), ("b", "uint32")])
    start, stop = layout.buffers[1]
    assert np.frombuffer(raw[start:stop], np.int64, 3).tolist() == [0, 1, 2]


@pytest.mark.parametrize("cut", [0, 4, 8, 100, -1])
def test_cut_off(raw, cut):
    """A stream that ends too early raises ManifestCorruptError; only its end mark may be missing."""
    end = max(stop for _, stop in read_layout(raw, "t").buffers)
    content = raw[: end + cut] if cut < 0 else raw[:cut]
    with pytest.raises(ManifestCorruptError, match=r"^t: "):
        read_layout(content, "t")


@pytest.mark.parametrize(
    "content",
    [b"PAR1" * 100, bytes(1000), b"\xff\xff\xff\xff\xff\xff\xff\x7f" + bytes(100)],
    ids=["text", "zeros", "a huge length"],
)
def test_foreign_files(content):
    """Text, zeros and a message with a huge length raise ManifestCorruptError as broken streams."""
    with pytest.raises(ManifestCorruptError, match="broken message prefix"):
        read_layout(content, "t")


def stream(batch: pa.RecordBatch, **options: object) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def test_compressed_batches_are_refused():
    """A stream with compressed buffers raises ManifestCorruptError."""
    content = stream(pa.record_batch({"a": pa.array(range(1000), pa.int64())}), compression="zstd")
    with pytest.raises(ManifestCorruptError, match="compressed"):
        read_layout(content, "t")


def test_other_types_have_a_name():
    """A type that no manifest has is returned by its number, for the error that expects another type."""
    assert read_layout(stream(pa.record_batch({"a": pa.array([1.5])})), "t").fields[0].kind == "type 3"


def test_schema_without_batch():
    """A stream that ends after its schema raises ManifestCorruptError."""
    batch = pa.record_batch({"a": pa.array([1])})
    content = batch.schema.serialize().to_pybytes() + b"\xff\xff\xff\xff\0\0\0\0"
    with pytest.raises(ManifestCorruptError, match="broken message prefix"):
        read_layout(content, "t")
