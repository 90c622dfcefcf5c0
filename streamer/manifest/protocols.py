"""Interfaces of the manifest builder: its inputs and its progress callbacks.

The builder knows neither stores nor formats; it is given a `Lister`, a `RangeReader` and an `Indexer`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import msgspec

from streamer.manifest.blocks import Block
from streamer.manifest.model import Chunk, Extent, Facts, ObjectRecord

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Need(msgspec.Struct, frozen=True):
    """An indexer asks for the bytes `[start, stop)` of an object; it gets them by `send`.

    Attributes:
        object: an object of the listing, or None for the one that is being indexed.
    """

    start: int
    stop: int
    object: ObjectRecord | None = None


class Examine(msgspec.Struct, frozen=True):
    """A survey or index asks what a recoder makes of an object as one block; it gets `Examined` by `send`.

    Some facts are known only when the whole object is decoded, which the engine does not do itself. An index that
    decompresses what it reads, a few MiB at a time, needs no recoder.

    Attributes:
        object: an object of at most `blocks.MOST_FETCH_BYTES`.
        format, options, facts: the format of the dataset, its options, and the facts about it.
        hint: the recoder's input besides the bytes.
        reads: whether the answer has the records, not only their number and length.
    """

    object: ObjectRecord
    format: str
    options: dict[str, Any]
    facts: Facts
    hint: bytes
    reads: bool = False


class Examined(msgspec.Struct, frozen=True):
    """The number of samples of an object, the bytes of their records, and with `Examine.reads` the records."""

    samples: int
    record_bytes: int
    records: bytes = b""


class Span(msgspec.Struct, frozen=True):
    """One sample in its object: the half-open byte range `[start, stop)`."""

    start: int
    stop: int


class Short(msgspec.Struct, frozen=True):
    """An object has no sample, because it is shorter than one.

    Attributes:
        length: length of the object.
        unit: unit of the length, and how much a sample has, as the message goes on.
        remedy: the option that takes shorter objects, or "" if there is none.
    """

    length: float
    unit: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"the longest has {self.length:g} {self.unit}{self.remedy and f'; {self.remedy}'}"


class Note(msgspec.Struct, frozen=True):
    """An index says what it has left out of an object, or what the user may not have meant.

    Attributes:
        what: a sentence that begins with what is counted ("episodes are shorter ..."). Notes with the same one, of all
            objects, become one line.
        count: how many there are.
        example: the first of them.
    """

    what: str
    count: int
    example: str


class LeftOut(msgspec.Struct, frozen=True):
    """A part of the dataset cannot be used, and the rest of its object can: a row of a table, an episode.

    Unless the user asked to leave such parts out, the build ends with an error that names all of them.

    Attributes:
        what: Which part, and why.
    """

    what: str


class Source(msgspec.Struct, frozen=True):
    """One object to index.

    Attributes:
        record: the object.
        notes: facts from the survey about it (its entry in an index of the whole dataset).
        sidecar: the object that contains an index of it.
        chunk_bytes: size of its chunks; set by the builder, for formats that choose the size of a block.
        key: its path below the dataset's url; set by the builder, for formats whose samples are named by it.
    """

    record: ObjectRecord
    notes: bytes = b""
    sidecar: ObjectRecord | None = None
    chunk_bytes: int = 8 << 20
    key: str = ""


class Survey(msgspec.Struct, frozen=True):
    """The facts known before the objects are indexed.

    Attributes:
        sources: the objects that contain samples, in the order of the samples.
        facts: facts about the whole dataset.
        read_bytes: the most bytes that the index will read, or None for all bytes of the objects.
        rows: rows of the table that says what the samples are, or 0 if there is none. A row is a sample, unless it is
            left out.
        left_out: parts that cannot be used, such as rows of a table that name no object.
        memory: bytes for the next survey of the dataset (`SurveyContext.memories`), kept beside the manifest.
    """

    sources: Sequence[Source]
    facts: Facts = Facts()
    read_bytes: int | None = None
    rows: int = 0
    left_out: Sequence[LeftOut] = ()
    memory: bytes = b""


class SurveyContext(msgspec.Struct, frozen=True):
    """What a survey is told besides the objects.

    Attributes:
        base: Folder that the urls of the dataset share, up to the first pattern; "" if each url is an object.
        memories: What earlier surveys of the dataset have left (`Survey.memory`), the newest first.
    """

    base: str = ""
    memories: Sequence[bytes] = ()


Answer: TypeAlias = memoryview | tuple[memoryview, ...] | Examined | None
# A survey yields its needs (several at once as a tuple, which is answered with a tuple), and is sent the bytes.
Surveying: TypeAlias = Generator[Need | tuple[Need, ...] | Examine, Answer, Survey]
# An index also yields samples or blocks in order of position, never both in one dataset, or why there are none; and
# notes.
Indexing: TypeAlias = Generator[Need | tuple[Need, ...] | Examine | Span | Block | Short | Note | LeftOut, Answer, None]


class Indexer(Protocol):
    """The part of a format that the builder needs, so that indexes import no format."""

    @property
    def name(self) -> str:
        """Name of the format, as users write it."""
        ...

    @property
    def revision(self) -> int:
        """A number, 0 at first, which grows when the same bytes get other records (recoder) or hints (index)."""
        ...

    @property
    def whole_objects(self) -> bool:
        """Whether every object is one sample, so that nothing needs to be read."""
        ...

    @property
    def options(self) -> dict[str, Any]:
        """Options on which the index depends besides the objects, as JSON values."""
        ...

    def accepts(self, key: str) -> bool:
        """Whether an object found by listing a prefix is part of the dataset."""
        ...

    def explain_empty(self, keys: Sequence[str]) -> str:
        """Returns why none of the objects of these names holds samples, or "" if the format does not know."""
        ...

    def survey(self, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]) -> Surveying:
        """Chooses the objects that contain samples, and finds the facts about them. Not called for `whole_objects`.

        Args:
            accepted: the objects that `accepts` takes, in the order of the urls, then by name.
            others: the other objects below the urls, by url.

        Raises:
            ManifestError: an index of the dataset cannot be read, or contradicts the listing.
        """
        ...

    def index(self, source: Source, facts: Facts, start: int = 0) -> Indexing:
        """Finds the samples of one object: yields `Need`s (answered with bytes), and what it finds (see `Indexing`).

        Formats that read all bytes ask for them forward, each once: the chunks among them are offered to the cache.
        Spans are in order and do not overlap.

        Args:
            source: the object.
            facts: the facts from the survey.
            start: the byte where a sample begins that an earlier run over this object found; it is the first one found.

        Raises:
            ManifestError: the object cannot be read. The text names it and the offset.
        """
        ...


@runtime_checkable
class ContextSurveyor(Protocol):
    """An indexer whose survey depends on more than the objects, as those of Parquet and Arrow do."""

    def survey_with(
        self, context: SurveyContext, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]
    ) -> Surveying:
        """Surveys objects as `Indexer.survey` does, and is told the context."""
        ...


class Lister(Protocol):
    """Lists objects; every ObjectStore is one, and `TaskLister`, which lists in tasks."""

    def list(self, url: str) -> AsyncIterator[Sequence[ObjectRecord]]:
        """Yields pages of the objects below `url`, with size and version."""
        ...


class RangeReader(Protocol):
    """Reads ranges, with retries and pinned versions; the engine and tasks of an executor have one each."""

    async def read(self, extent: Extent) -> bytes:
        """Returns exactly the bytes of `extent`."""
        ...


@runtime_checkable
class BoundedReader(Protocol):
    """A reader that bounds the metadata that are in memory at once, as the engine does and tasks do not."""

    def hold(self, ranges: Sequence[Extent]) -> AbstractAsyncContextManager[None]:
        """Reserves memory for what is read and parsed inside.

        Raises:
            ManifestError: the ranges together are longer than what this reader allows.
        """
        ...


@runtime_checkable
class Examiner(Protocol):
    """A reader that has recoders: neither this package nor that of indexes imports them."""

    async def examine(self, asked: Examine) -> Examined:
        """Recodes an object as one block, and counts its samples.

        Raises:
            ManifestError: it cannot be decoded.
        """
        ...


class IndexEstimate(msgspec.Struct, frozen=True):
    """The cost of a build, known after the listing.

    Attributes:
        objects: number of objects to index.
        total_bytes: sum of their sizes.
        read_bytes: most bytes that will be read (0 if the listing is enough).
        requests: most range requests, of 8 MiB each if all bytes are read.
        chunk_bytes: size of the chunks.
        known_bytes: sizes of the objects whose samples are in an earlier manifest.
    """

    objects: int
    total_bytes: int
    read_bytes: int
    requests: int
    chunk_bytes: int
    known_bytes: int = 0


class BuildProgress(msgspec.Struct, frozen=True):
    """Progress of a build.

    Attributes:
        objects_done: indexed objects.
        objects: number of listed objects.
        bytes_done: bytes of the objects that were passed, read or skipped.
        total_bytes: sizes of all objects together.
        read_bytes: bytes read so far.
        samples: samples of the indexed objects.
    """

    objects_done: int
    objects: int
    bytes_done: int
    total_bytes: int
    read_bytes: int
    samples: int


class IndexedChunk(Chunk, frozen=True):
    """A chunk whose bytes were read for the index, before its number is known.

    `index` and `first_sample` are -1, because they depend on objects that are still being read. Key, extents, lengths
    and `sample_offsets` (int64, samples + 1 chunk-local boundaries) are final, which is all that a cache needs.
    """

    sample_offsets: NDArray[np.int64] | None = None


OnEstimate = Callable[[IndexEstimate], None]
OnProgress = Callable[[BuildProgress], None]
OnNote = Callable[[Note], None]
OnChunk = Callable[[IndexedChunk, list[memoryview]], Awaitable[None]]
ChooseFormat = Callable[[Iterable[str]], Indexer]
