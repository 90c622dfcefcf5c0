"""Recodes a job: gives each block to its format, and writes records and the table of their starts to shared memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.annotations.options import TableOptions
from streamer.annotations.table import ANNOTATIONS
from streamer.config import format_bytes
from streamer.errors import ConfigError, RecodeError
from streamer.formats.base import Recoder
from streamer.formats.chunkfile import START_BYTES, encode_starts
from streamer.formats.registry import find_format
from streamer.manifest.blocks import BlockHint, decode_hints
from streamer.recode.messages import Job
from streamer.recode.shared import Buffer

# Puts buffers behind those before.
Write = Callable[[Sequence[Buffer]], None]


class BlockError(Exception):
    """Raised for a block that could not be recoded; the cause is the error."""

    def __init__(self, block: int) -> None:
        super().__init__(block)
        self.block = block


class Recoders:
    """The recoder of the last dataset: opening one may take longer than a chunk."""

    def __init__(self) -> None:
        self._dataset: tuple[object, ...] = ()
        self._recoder: Recoder | None = None

    def of(self, job: Job) -> Recoder:
        """Returns the recoder of a job's dataset; raises ConfigError if a library is not installed."""
        dataset = (job.format, job.options, job.facts)
        if self._recoder is None or self._dataset != dataset:
            if job.format == ANNOTATIONS:
                self._recoder = _open_annotations(msgspec.convert(job.options, TableOptions))
            else:
                self._recoder = find_format(job.format, job.options).recoder(job.facts)
            self._dataset = dataset
        return self._recoder


def _open_annotations(options: TableOptions) -> Recoder:
    try:
        from streamer.annotations.parse import AnnotationRecoder
    except ImportError as error:
        raise ConfigError(
            f"annotations={options.url!r} needs pyarrow: pip install 'streamer-data[parquet]'", field="annotations"
        ) from error
    return AnnotationRecoder(options)


def recode(job: Job, recoder: Recoder, content: memoryview, write: Write) -> tuple[int, int]:
    """Recodes a chunk; returns how many bytes it has written, and its samples.

    Args:
        job: the job.
        recoder: recoder of its dataset.
        content: fetched bytes of its blocks, one after the other.
        write: called with the records, then with the table of their starts.

    Raises:
        BlockError: a block cannot be decoded, or its records are not as expected.
        RecodeError: the hint does not fit the chunk.
    """
    blocks = _blocks(job)
    lengths = [np.empty(0, np.int64)]
    at = total = 0
    for number, block in enumerate(blocks):
        piece = content[at : at + block.fetch_bytes]
        at += block.fetch_bytes
        try:
            records = recoder.recode(piece, block.samples, block.hint)
            parts = [memoryview(part).cast("B") for part in records.parts]  # type: ignore[arg-type]
            lengths.append(records.lengths)
            total += _check(records.lengths, parts, block)
            _check_total(total + START_BYTES * sum(map(len, lengths)), job)
        except Exception as error:
            raise BlockError(number) from error
        write(parts)
        del records, parts
    table = encode_starts(np.concatenate(lengths))
    write([table])
    return total + len(table), len(table) // START_BYTES


def _blocks(job: Job) -> list[BlockHint]:
    try:
        blocks = decode_hints(job.hint)
    except msgspec.MsgspecError as error:
        raise RecodeError(f"the hint of the chunk cannot be decoded: {error}") from error
    found = sum(block.fetch_bytes for block in blocks), sum(block.samples for block in blocks)
    if found != (job.fetch_bytes, job.samples):
        raise RecodeError(
            f"its blocks have {found[0]} bytes and {found[1]} samples, the chunk {job.fetch_bytes} and {job.samples}"
        )
    return blocks


def _check(lengths: NDArray[np.int64], parts: Sequence[memoryview], block: BlockHint) -> int:
    """Returns the bytes of the records of a block."""
    if lengths.dtype != np.int64 or (block.samples >= 0 and lengths.shape != (block.samples,)):
        raise RecodeError(f"it has {len(lengths)} samples, {block.samples} were indexed")
    total = sum(map(len, parts))
    if len(lengths) and (int(lengths.min()) < 0 or int(lengths.sum()) != total):
        raise RecodeError(f"the lengths of its records do not sum up to their {total} bytes")
    return total


def _check_total(total: int, job: Job) -> None:
    if total > job.most_bytes:
        raise RecodeError(
            f"its records take {format_bytes(total)} and more, {format_bytes(job.planned_bytes)} were planned when it "
            "was indexed; index again, or write it in smaller blocks"
        )
