"""Record batches to records of a table; the part that runs in a recoder, which has pyarrow."""

from __future__ import annotations

from base64 import b64decode

import pyarrow as pa

from streamer.formats.arrow_ipc.batches import joined, read_batches
from streamer.formats.arrow_ipc.schema import read_schema
from streamer.formats.base import Facts, Records
from streamer.formats.parquet.columns import column_of, is_json, values_at
from streamer.formats.parquet.schema import node_at
from streamer.formats.table.arrays import decoding, json_column
from streamer.formats.table.writer import write_records

_TIMES = {32: pa.int32(), 64: pa.int64()}


class BatchRecoder:
    """Makes records of record batches.

    Args:
        facts: of the dataset.
    """

    def __init__(self, facts: Facts) -> None:
        self._message = memoryview(b64decode(facts.notes["schema"]))
        schema = read_schema(self._message)
        self._specs = facts.fields
        self._nodes = [node_at(schema.root, field.path) for field in schema.fields]
        self._primitives = schema.root.primitives

    def recode(self, content: memoryview, samples: int, hint: bytes) -> Records:
        """Decodes record batches.

        Args:
            content: their messages; before them those of the dictionaries, if there are any.
            samples: rows of all of them.
            hint: not empty if there are dictionaries.

        Raises:
            RecodeError: bytes that are no record batches of so many rows.
        """
        with decoding(content, samples, "Arrow"):
            return joined(read_batches(self._message, content, dictionaries=bool(hint)), samples, self._records)

    def _records(self, batch: pa.RecordBatch) -> Records:
        rows = batch.num_rows
        plain = pa.table([column.cast(_plain(column.type)) for column in batch.columns], batch.schema.names)
        columns = []
        for spec, node in zip(self._specs, self._nodes, strict=True):
            if is_json(spec, node):
                columns.append(json_column(values_at(plain, node.path).to_pylist()))
            else:
                columns.append(column_of(spec, node, [plain] * self._primitives, rows))
        return write_records(self._specs, columns, rows)


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type whose values are the same, in the layout that columns of Parquet have."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return pa.large_string() if pa.types.is_string_view(kind) else pa.large_binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _plain(field.type)) for field in kind])
    if pa.types.is_null(kind):
        return pa.int32()
    if pa.types.is_temporal(kind):
        return _TIMES[kind.bit_width]
    return kind
