"""Makes records of Arrow's record batches, by pyarrow; the recoders of Arrow and of LitData use it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from streamer.formats.base import Facts, Records
from streamer.formats.table.writer import catch_decode_errors, constant_column, write_records
from streamer.tables.arrow_ipc import messages
from streamer.tables.arrow_ipc.messages import FILE_HINT, OWN_SCHEMA, ArrowFileHint
from streamer.tables.arrow_ipc.schema import ArrowColumns, read_schema
from streamer.tables.parquet.columns import column_of
from streamer.tables.parquet.schema import SchemaNode

_FILE_HINT = msgspec.msgpack.Decoder(ArrowFileHint)
_TIMES = {32: pa.int32(), 64: pa.int64()}


class BatchRecoder:
    """Makes records of the blocks of a dataset in Arrow IPC, as a `Recoder`."""

    def __init__(self, facts: Facts) -> None:
        self._columns = ArrowColumns.from_facts(facts)
        self._fields = facts.fields

    def recode(self, content: memoryview, samples: int, hint: bytes) -> Records:
        """Makes the records of a block; raises RecodeError. `messages.py` says what a hint is (`DICTIONARIES`)."""
        with catch_decode_errors(content, samples, "Arrow"):
            if hint.startswith(FILE_HINT):
                file = _FILE_HINT.decode(hint[len(FILE_HINT) :])
            else:
                dictionaries, _, own = hint.partition(OWN_SCHEMA)
                file = ArrowFileHint(bool(dictionaries), own, [])
            message = memoryview(file.schema) if file.schema else self._columns.message
            schema = read_schema(message) if file.schema else self._columns.first
            nodes = self._columns.nodes(schema)
            if self._columns.names:
                numbers = self._columns.find_numbers(schema)
                batches = read_columns(message, content, schema.buffers, numbers)
            else:
                batches = read_batches(message, content, dictionaries=file.has_dictionaries)
            return join_batches(batches, samples, lambda batch: self._write(batch, nodes, file, schema.root.primitives))

    def _write(
        self,
        batch: pa.RecordBatch,
        nodes: Sequence[tuple[SchemaNode | None, SchemaNode]],
        file: ArrowFileHint,
        primitives: int,
    ) -> Records:
        """Makes the records of one batch.

        Args:
            batch: the batch.
            nodes: result of `ArrowColumns.nodes` for the file.
            file: hint of the block.
            primitives: number of primitives in the file's schema.
        """
        rows = batch.num_rows
        plain = pa.table([_plain_values(column) for column in batch.columns], batch.schema.names)
        meanings = self._columns.meanings
        columns = [
            constant_column(spec, None, rows)
            if node is None
            else column_of(spec, node, known, tables=[plain] * primitives, rows=rows, meanings=meanings)
            for spec, (node, known) in zip(self._columns.fields, nodes, strict=True)
        ]
        pairs = zip(self._columns.partitions, file.partitions, strict=True)
        columns += [constant_column(spec, value, rows) for spec, value in pairs]
        return write_records(self._fields, columns, rows)


def _plain_values(values: pa.Array) -> pa.Array:
    """Returns the same values in the layout that pyarrow gives columns of Parquet.

    pyarrow cannot cast dictionaries of views, which polars writes, so arrays that contain any dictionary are taken
    apart.
    """
    kind = values.type
    if not _has_dictionary(kind):
        return values.cast(_plain(kind))
    if isinstance(kind, pa.BaseExtensionType):
        return _plain_values(values.storage)
    if pa.types.is_dictionary(kind):
        return _plain_values(values.dictionary).take(values.indices)
    if pa.types.is_struct(kind):
        parts = [_plain_values(values.field(number)) for number in range(kind.num_fields)]
        mask = values.is_null() if values.null_count else None
        return pa.StructArray.from_arrays(parts, [field.name for field in kind], mask=mask)
    if pa.types.is_map(kind):
        parts = [_plain_values(values.keys), _plain_values(values.items)]
        items = pa.StructArray.from_arrays(parts, ["key", "value"])
        plain = pa.map_(parts[0].type, parts[1].type)
    else:
        values = values if pa.types.is_list(kind) else values.cast(pa.list_(kind.value_type))
        items = _plain_values(values.values)
        plain = pa.list_(items.type)
    buffers = values.buffers()[:2]
    return pa.Array.from_buffers(plain, len(values), buffers, offset=values.offset, children=[items])


def _has_dictionary(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _has_dictionary(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return True
    return any(_has_dictionary(kind.field(number).type) for number in range(kind.num_fields))


def _plain(kind: pa.DataType) -> pa.DataType:
    """Returns the type for the same values in the layout that pyarrow gives columns of Parquet."""
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return pa.large_string() if pa.types.is_string_view(kind) else pa.large_binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _plain(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(kind.storage_type)
    if pa.types.is_null(kind):
        return pa.int32()
    if pa.types.is_temporal(kind):
        return _TIMES[kind.bit_width]
    return kind


def join_batches(
    batches: Sequence[pa.RecordBatch], samples: int, write: Callable[[pa.RecordBatch], Records]
) -> Records:
    """Returns the records that `write` makes of all batches; raises ValueError if they have not `samples` rows."""
    if (rows := sum(batch.num_rows for batch in batches)) != samples:
        raise ValueError(f"{rows} rows, expected {samples}")
    made = [write(batch) for batch in batches]
    return Records(
        [part for records in made for part in records.parts],
        np.concatenate([np.empty(0, np.int64), *(records.lengths for records in made)]),
    )


def read_batches(schema: memoryview, content: memoryview, *, dictionaries: bool = False) -> list[pa.RecordBatch]:
    """Reads the record batches of consecutive messages, and checks that all offsets in them are valid.

    Args:
        schema: the message of the schema.
        content: the messages; they are copied only if there are dictionaries.
        dictionaries: whether there are messages with dictionaries among them.

    Raises:
        ValueError, OSError, pyarrow.ArrowException: the bytes are not such messages.
    """
    if dictionaries:
        with pa.ipc.open_stream(pa.py_buffer(bytes(schema) + bytes(content))) as stream:
            batches = list(stream)
    else:
        columns = pa.ipc.read_schema(pa.py_buffer(schema))
        source = pa.BufferReader(pa.py_buffer(content))
        batches = []
        while source.tell() < source.size():
            batches.append(pa.ipc.read_record_batch(pa.ipc.read_message(source), columns))
    _check_batches(batches)
    return batches


def read_columns(
    schema: memoryview, content: memoryview, buffers: Sequence[tuple[int, int]], columns: Sequence[int]
) -> list[pa.RecordBatch]:
    """Reads some columns from record batches whose bodies have only the buffers of these columns.

    Raises the errors of `read_batches`.

    Args:
        schema: The message of the schema.
        content: Consecutive messages, of which those of dictionaries are whole.
        buffers: Numbers of the buffers of each column of the file; see `Schema`.
        columns: Numbers of the columns.
    """
    stream: list[bytes | memoryview] = [schema]
    at = 0
    while at < len(content):
        body = at + messages.PREFIX_BYTES + messages.read_prefix(content[at:])
        metadata = content[at + messages.PREFIX_BYTES : body]
        message = messages.read_message(metadata)
        if message.kind == messages.BATCH:
            parts = messages.find_parts(metadata, buffers, columns)
            stop = body + parts.body_bytes
            stream += [content[at : at + messages.PREFIX_BYTES], messages.cut_batch(metadata, parts)]
        else:
            stop = body + message.body_bytes
            stream.append(content[at:body])
        if stop > len(content):
            raise ValueError(f"a message that ends at byte {stop} of {len(content)}")
        stream.append(content[body:stop])
        at = stop
    options = pa.ipc.IpcReadOptions(included_fields=[*columns])
    with pa.ipc.open_stream(pa.py_buffer(b"".join(stream)), options=options) as reader:
        batches = list(reader)
    _check_batches(batches)
    return batches


def _check_batches(batches: Sequence[pa.RecordBatch]) -> None:
    """Raises ValueError or pyarrow.ArrowException if an offset in a batch is invalid."""
    for batch in batches:
        # No value is read before all offsets are known to be inside of the batch.
        batch.validate(full=True)
        for column in batch.columns:
            _check_views(column)


def _check_views(values: pa.Array) -> None:
    """Raises ValueError for views of negative length: `validate` accepts null ones, `cast` crashes (pyarrow 26.0.1)."""
    kind = values.type
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        if len(values) and (np.frombuffer(values.buffers()[1], "<i4")[::4] < 0).any():
            raise ValueError("a view of negative length")
    elif pa.types.is_dictionary(kind):
        _check_views(values.dictionary)
    elif pa.types.is_struct(kind):
        for number in range(kind.num_fields):
            _check_views(values.field(number))
    elif hasattr(values, "values"):  # lists and maps
        _check_views(values.values)
