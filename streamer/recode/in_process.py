"""Recodes in this process: for tasks, which run in processes of their own and may be repeated.

An engine has recoders instead, because it must outlive what a damaged file does to one.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamer.errors import ConfigError, RecodeError, StreamerError
from streamer.manifest.model import Chunk
from streamer.manifest.protocols import Examine, Examined
from streamer.recode.messages import Done, RecodeJob
from streamer.recode.results import Recoded, check_records, failure, read_examined
from streamer.recode.shared import Buffer
from streamer.recode.work import BlockError, Recoders, recode


def recode_here(recoders: Recoders, job: RecodeJob, chunk: Chunk, content: memoryview) -> Recoded:
    """Recodes the fetched bytes of a chunk.

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
    """Recodes an object as one block, and counts its samples; raises ManifestError with a "reason"."""
    with read_examined(asked) as chunk:
        return recode_here(recoders, RecodeJob.examine(asked), chunk, memoryview(content)).answer(asked)
