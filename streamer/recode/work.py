"""Recodes a job: lets the format decode each block of a chunk, and writes the records and the table of their offsets.

Recoders run it (`recode/__main__.py`), and tasks without an engine in their own process (`indexing/tasks.py`,
`shards/reading.py`, and `recode/annotations.py` for packs).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.annotations.options import TableOptions
from streamer.annotations.table import ANNOTATIONS
from streamer.base.extras import require_extra
from streamer.config import format_bytes
from streamer.errors import ConfigError, RecodeError, StreamerError
from streamer.formats.base import Buffers, Recoder, Records
from streamer.formats.chunkfile import encode_table, outside, table_bytes
from streamer.formats.registry import find_format
from streamer.manifest.blocks import BlockHint, decode_hints
from streamer.manifest.model import Chunk, Codec
from streamer.manifest.protocols import Examine, Examined
from streamer.recode.messages import Done, RecodeJob
from streamer.recode.results import Recoded, check_records, failure, read_examined
from streamer.recode.shared import Buffer

# Writes buffers after those of the calls before.
Write = Callable[[Sequence[Buffer]], None]


class BlockError(Exception):
    """Raised for a block that cannot be recoded; its `__cause__` is the error.

    Attributes:
        block: number of the block in the chunk.
    """

    def __init__(self, block: int) -> None:
        super().__init__(block)
        self.block = block


class Recoders:
    """Keeps the `Recoder` object of the last dataset, because making one may take longer than recoding a chunk."""

    def __init__(self) -> None:
        self._dataset: tuple[object, ...] = ()
        self._recoder: Recoder | None = None

    def find(self, job: RecodeJob) -> Recoder:
        """Returns the `Recoder` object of a job's dataset.

        Raises:
            ConfigError: the format, or a library of it, is not installed.
        """
        dataset = (job.format, job.options, job.facts)
        if self._recoder is None or self._dataset != dataset:
            if job.format == ANNOTATIONS:
                options = msgspec.convert(job.options, TableOptions)
                with require_extra(f"annotations={options.url!r}", field="annotations"):
                    from streamer.annotations.parse import AnnotationRecoder
                self._recoder = AnnotationRecoder(options)
            else:
                self._recoder = find_format(job.format, job.options).recoder(job.facts)
            self._dataset = dataset
        return self._recoder


class RecodedBlocks:
    """Collects the records of a chunk block by block, and writes them.

    Records are written at once. Where they share parts, the parts are written at once and the heads by `finish`.

    Args:
        job: the job of the chunk.
        write: writes buffers after those before.
    """

    def __init__(self, job: RecodeJob, write: Write) -> None:
        self._job = job
        self._write = write
        self._heads: list[bytes] = []
        self._lengths = [np.empty(0, np.int64)]
        self._part_lengths = [np.empty(0, np.int64)]
        self._part_ranges: list[NDArray[np.int64]] = []
        self._total = self._samples = self._parts = self._k = 0

    def add(self, records: Records, block: BlockHint) -> None:
        """Takes the records of the next block.

        Raises:
            RecodeError: their lengths, ranges or number are wrong, or the chunk would take more than `most_bytes`.
        """
        heads = _views(records.parts)
        shared = _views(records.shared_parts)
        lengths = records.lengths
        if lengths.dtype != np.int64 or (block.samples >= 0 and lengths.shape != (block.samples,)):
            raise RecodeError(f"it has {len(lengths)} samples, {block.samples} were indexed")
        head_bytes = sum(map(len, heads))
        if len(lengths) and (int(lengths.min()) < 0 or int(lengths.sum()) != head_bytes):
            raise RecodeError(f"the lengths of its records do not sum up to their {head_bytes} bytes")
        self._total += head_bytes + _check_parts(records, shared, block)
        self._k = max(self._k, records.part_ranges.shape[1])
        self._lengths.append(records.lengths)
        self._part_lengths.append(records.part_lengths)
        self._part_ranges.append(records.part_ranges + self._parts)
        self._samples += len(records.lengths)
        self._parts += len(records.part_lengths)
        total = self._total + table_bytes(self._samples, self._parts, self._k)
        if total > self._job.most_bytes:
            raise RecodeError(
                f"its records take {format_bytes(total)} and more, {format_bytes(self._job.planned_bytes)} were "
                "planned when it was indexed; index again, or write it in smaller blocks"
            )
        if not self._k:
            self._write(heads)
            return
        self._write(shared)
        self._heads += map(bytes, heads)

    def finish(self) -> tuple[int, int, Codec]:
        """Writes the heads that were kept, and the table.

        Returns:
            Bytes written in all, number of samples, and how these are stored.
        """
        ranges = np.concatenate(self._part_ranges) if self._k else np.empty((0, 0, 2), np.int64)
        table = encode_table(np.concatenate(self._lengths), np.concatenate(self._part_lengths), ranges)
        self._write([*self._heads, table])
        return self._total + len(table), self._samples, Codec.SHARED if self._k else Codec.RECORDS


def recode(job: RecodeJob, recoder: Recoder, content: memoryview, write: Write) -> tuple[int, int, Codec]:
    """Recodes a chunk.

    Args:
        job: the job.
        recoder: the `Recoder` object of its dataset.
        content: fetched bytes of its blocks, one after the other.
        write: called several times, with the records (or the shared parts, then the heads), then with their table.

    Returns:
        Bytes written in all, number of samples, and how these are stored.

    Raises:
        BlockError: a block cannot be decoded, or its records are not as expected.
        RecodeError: the hint cannot be decoded, or does not fit the chunk.
    """
    try:
        blocks = decode_hints(job.hint)
    except ValueError as error:
        raise RecodeError(f"the hint of the chunk cannot be decoded: {error}") from error
    found = sum(block.fetch_bytes for block in blocks), sum(block.samples for block in blocks)
    if found != (job.fetch_bytes, job.samples):
        raise RecodeError(
            f"its blocks have {found[0]} bytes and {found[1]} samples, the chunk {job.fetch_bytes} and {job.samples}"
        )
    made = RecodedBlocks(job, write)
    at = 0
    for number, block in enumerate(blocks):
        piece = content[at : at + block.fetch_bytes]
        at += block.fetch_bytes
        try:
            made.add(recoder.recode(piece, block.samples, block.hint), block)
        except Exception as error:
            raise BlockError(number) from error
    return made.finish()


def _views(buffers: Buffers) -> list[memoryview]:
    return [memoryview(buffer).cast("B") for buffer in buffers]  # type: ignore[arg-type]


def _check_parts(records: Records, parts: Sequence[memoryview], block: BlockHint) -> int:
    """Returns the bytes of the parts that the records of a block share; 0 if they share none.

    Raises:
        RecodeError: lengths or ranges of the parts are wrong, or there are more or fewer ranges than indexed.
    """
    lengths = records.part_lengths
    ranges = records.part_ranges
    total = sum(map(len, parts))
    k = ranges.shape[1]
    if block.samples >= 0 and k != block.part_ranges:
        raise RecodeError(f"its samples have {k} ranges of shared parts, {block.part_ranges} were indexed")
    if lengths.dtype != np.int64 or lengths.ndim != 1 or (lengths < 0).any() or int(lengths.sum()) != total:
        raise RecodeError(f"the lengths of its shared parts do not sum up to their {total} bytes")
    if not k and not total:
        return 0
    if ranges.dtype != np.int64 or ranges.shape != (len(records.lengths), k, 2) or not k:
        raise RecodeError(f"{ranges.dtype} of shape {ranges.shape} are no ranges of {len(records.lengths)} samples")
    if (sample := outside(ranges, len(lengths))) >= 0:
        raise RecodeError(f"its sample {sample} has the shared parts {ranges[sample].tolist()} of {len(lengths)}")
    return total


def recode_here(recoders: Recoders, job: RecodeJob, chunk: Chunk, content: memoryview) -> Recoded:
    """Recodes the fetched bytes of a chunk in this process, for tasks, which may crash and be repeated.

    An engine uses recoders instead, since it must not end when a damaged file crashes a library.

    Args:
        recoders: keeps the `Recoder` object between calls, which must not overlap.
        job: the job of the chunk.
        chunk: origin of the bytes, for errors.
        content: the fetched bytes.

    Raises:
        RecodeError: the chunk cannot be decoded; names object, range, format and reason.
        ConfigError: the format, or a library of it, is not installed.
    """
    made = bytearray()

    def write(buffers: Sequence[Buffer]) -> None:
        for buffer in buffers:
            made.extend(buffer)

    try:
        written, samples, codec = recode(job, recoders.find(job), content, write)
    except RecodeError as error:
        raise failure(chunk, job, error.message, -1) from error
    except BlockError as error:
        cause = error.__cause__
        if isinstance(cause, ConfigError):
            raise cause from error
        reason = cause.message if isinstance(cause, StreamerError) else repr(cause)
        raise failure(chunk, job, reason, error.block) from cause
    return check_records(lambda length: memoryview(made)[:length], Done(written, samples, 0.0, codec), job, chunk)


def examine_here(recoders: Recoders, asked: Examine, content: bytes) -> Examined:
    """Recodes a whole object as one block in this process, and returns what the index asked for.

    Args:
        recoders: keeps the `Recoder` object between calls, which must not overlap.
        asked: the object, and whether its records are wanted.
        content: all bytes of the object.

    Raises:
        ManifestError: the object cannot be decoded; has a detail "reason".
        ConfigError: the format, or a library of it, is not installed.
    """
    with read_examined(asked) as chunk:
        return recode_here(recoders, RecodeJob.examine(asked), chunk, memoryview(content)).answer(asked)
