"""The messages between the engine and a recoder: one msgpack datagram each way per job.

The job itself, with its hints and facts, is in the shared memory, because it may be longer than a datagram. So are the
fetched bytes of a short chunk, behind the job; for longer ones the datagram carries the descriptor of the memory that
they were fetched into.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from streamer.manifest.blocks import MOST_EXTRA_BYTES, MOST_RATIO, MOST_RECORD_BYTES, Block, encode_hints
from streamer.manifest.model import Chunk, Codec, Facts
from streamer.manifest.protocols import Examine
from streamer.manifest.table import Manifest

# Longest answer; an error's text is cut to fit.
MOST_ANSWER_BYTES = 16 << 10
MOST_TEXT = 2000


class RecodeJob(msgspec.Struct, frozen=True, array_like=True):
    """One chunk to recode: its dataset, hint (see `manifest.blocks`), samples (-1: unknown) and fetched bytes.

    `planned_bytes` is the planned length of its records and their table.
    """

    format: str
    options: dict[str, Any]
    facts: Facts
    hint: bytes
    samples: int
    fetch_bytes: int
    planned_bytes: int

    @classmethod
    def make(cls, manifest: Manifest, chunk: Chunk) -> RecodeJob:
        """Makes the job of a chunk."""
        content = manifest.content
        return cls(
            format=content.format,
            options=content.options,
            facts=manifest.facts,
            hint=chunk.hint,
            samples=chunk.samples,
            fetch_bytes=chunk.fetch_bytes,
            planned_bytes=chunk.local_bytes,
        )

    @classmethod
    def examine(cls, asked: Examine) -> RecodeJob:
        """Makes the job of an index: an object as one block, about which nothing is known."""
        size = asked.object.size
        hint = encode_hints([Block(((0, size),), -1, 0, asked.hint)])
        planned_bytes = (MOST_RECORD_BYTES - MOST_EXTRA_BYTES) // MOST_RATIO
        return cls(
            format=asked.format,
            options=asked.options,
            facts=asked.facts,
            hint=hint,
            samples=-1,
            fetch_bytes=size,
            planned_bytes=planned_bytes,
        )

    @property
    def most_bytes(self) -> int:
        """Most bytes of the records and their table; less than 4 GiB, because starts are uint32."""
        return min(MOST_RATIO * self.planned_bytes + MOST_EXTRA_BYTES, (1 << 32) - 1)

    @property
    def most_seconds(self) -> float:
        """Time after which a recoder counts as hanging."""
        return 60.0 + (self.fetch_bytes + self.planned_bytes) / (1 << 20)


class StartJob(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """A job is in the first `job_bytes` of the shared memory."""

    job_bytes: int


class Done(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The records and their table are in the shared memory: their length, samples, CPU time of the job, and codec."""

    local_bytes: int
    samples: int
    cpu_seconds: float
    codec: int = Codec.RECORDS


class RecodeRefused(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The job failed: the class name of the error, its reason, and the number of the block; -1 for all of them."""

    kind: str
    message: str
    block: int = -1


Answer: TypeAlias = Done | RecodeRefused

JOB = msgspec.msgpack.Decoder(RecodeJob)
START = msgspec.msgpack.Decoder(StartJob)
ANSWER: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Done | RecodeRefused)
encode = msgspec.msgpack.Encoder().encode
