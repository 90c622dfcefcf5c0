"""Decodes record batches; for recoders, which have pyarrow."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from streamer.formats.base import Records


def joined(batches: Sequence[pa.RecordBatch], samples: int, write: Callable[[pa.RecordBatch], Records]) -> Records:
    """The records of several batches.

    Args:
        batches: in order.
        samples: rows of all of them.
        write: makes the records of one.

    Raises:
        ValueError: they have another number of rows.
    """
    if (rows := sum(batch.num_rows for batch in batches)) != samples:
        raise ValueError(f"{rows} rows, expected {samples}")
    made = [write(batch) for batch in batches]
    return Records(
        [part for records in made for part in records.parts],
        np.concatenate([np.empty(0, np.int64), *(records.lengths for records in made)]),
    )


def read_batches(schema: memoryview, content: memoryview, *, dictionaries: bool = False) -> list[pa.RecordBatch]:
    """The record batches of messages that follow each other.

    Args:
        schema: the message of it.
        content: the messages, of which nothing is copied unless there are dictionaries.
        dictionaries: whether there are messages of those among them.

    Raises:
        ValueError, OSError, pyarrow.ArrowException: not such messages.
    """
    if dictionaries:
        with pa.ipc.open_stream(pa.py_buffer(bytes(schema) + bytes(content))) as stream:
            batches = list(stream)
    else:
        columns, source = pa.ipc.read_schema(pa.py_buffer(schema)), pa.BufferReader(pa.py_buffer(content))
        batches = []
        while source.tell() < source.size():
            batches.append(pa.ipc.read_record_batch(pa.ipc.read_message(source), columns))
    for batch in batches:
        # Nothing is read out of a batch before it is known that all places in it are inside of it.
        batch.validate(full=True)
        for column in batch.columns:
            _check_views(column)
    return batches


def _check_views(values: pa.Array) -> None:
    """Refuses null views of negative length: `validate` lets them pass, `cast` crashes over them (pyarrow 26.0.1)."""
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
