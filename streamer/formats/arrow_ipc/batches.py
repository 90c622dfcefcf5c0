"""Decodes record batches; for recoders, which have pyarrow."""

from __future__ import annotations

import pyarrow as pa


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
    return batches
