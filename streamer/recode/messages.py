"""Defines the messages between the engine and a recoder: one msgpack datagram each way per job.

The engine makes the job of a chunk (`engine/bring.py`, `recoded_chunks.py`) or of a file of annotations
(`annotations.py`), `recode/pool.py` sends it, and `recode/__main__.py` answers. Tasks make such jobs for their own
process (`shards/reading.py`, `recode/work.py`).

The job itself is in the shared memory, because its hints may be longer than a datagram. The fetched bytes of a short
chunk follow the job there. For a longer chunk the datagram carries the descriptor of the memory with its bytes.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from streamer.manifest.blocks import MOST_EXTRA_BYTES, MOST_RATIO, MOST_RECORD_BYTES, Block, encode_hints
from streamer.manifest.model import Chunk, Codec, Facts
from streamer.manifest.protocols import Examine
from streamer.manifest.table import Manifest

# The longest answer has this many bytes. The text of an error is cut to so many characters, so that it fits.
MOST_ANSWER_BYTES = 16 << 10
MOST_TEXT = 2000


class RecodeJob(msgspec.Struct, frozen=True, array_like=True):
    """A chunk to recode, as the recoder needs to know it.

    Attributes:
        format: name of the format of the dataset, or `ANNOTATIONS` for a file of annotations.
        options: options of the format.
        facts: facts about the dataset, from its survey.
        hint: the blocks of the chunk, encoded (`manifest.blocks.encode_hints`).
        samples: number of samples in the chunk; -1 if it is not known.
        fetch_bytes: length of the fetched bytes, which are those of all blocks.
        planned_bytes: length that the index expects of the records and their table.
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
        """Makes the job of a chunk of this manifest."""
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
        """Makes the job of an index that asks what a whole object becomes: one block with -1 samples.

        Its planned length is such that `most_bytes` is `MOST_RECORD_BYTES`.
        """
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
        """Most bytes that the records and their table may take; below 4 GiB, because the table has uint32 offsets."""
        return min(MOST_RATIO * self.planned_bytes + MOST_EXTRA_BYTES, (1 << 32) - 1)

    @property
    def most_seconds(self) -> float:
        """Seconds after which a recoder without an answer counts as hanging: a minute, and 1 s per MiB."""
        return 60.0 + (self.fetch_bytes + self.planned_bytes) / (1 << 20)


class StartJob(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Engine to recoder: a job is in the first `job_bytes` of the shared memory."""

    job_bytes: int


class Done(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Recoder to engine: the job is done, and the shared memory begins with the records and their table.

    Attributes:
        local_bytes: length of records and table.
        samples: number of samples.
        cpu_seconds: CPU time that the job took.
        codec: how the samples are stored, a `Codec`.
    """

    local_bytes: int
    samples: int
    cpu_seconds: float
    codec: int = Codec.RECORDS


class RecodeRefused(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Recoder to engine: the job failed.

    Attributes:
        kind: class name of the error.
        message: its text, at most `MOST_TEXT` characters.
        block: number of the block in the chunk that failed; -1 if the error is not about a single block.
    """

    kind: str
    message: str
    block: int = -1


Answer: TypeAlias = Done | RecodeRefused

JOB = msgspec.msgpack.Decoder(RecodeJob)
START = msgspec.msgpack.Decoder(StartJob)
ANSWER: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Done | RecodeRefused)
encode = msgspec.msgpack.Encoder().encode
