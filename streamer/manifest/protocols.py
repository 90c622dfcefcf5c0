"""Interfaces between indexing, formats and stores: what an index asks for, what it finds, and what it reports.

Every format is an `Indexer`, `indexing/build.py` ("the builder" here) runs it, and `recode/` answers `Examine`. The
builder knows neither stores nor formats: it is given a `Lister`, a `RangeReader` and an `Indexer`, by the engine,
`indexing/source.py` or `shards/`. A survey and an index are generators: they yield what they need, and get the bytes by
`send`.
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
    """A survey or index asks for a range of an object; it gets the bytes by `send`.

    Attributes:
        start, stop: half-open byte range.
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
        hint: what the recoder needs besides the bytes.
        reads: whether the answer has the records, not only their number and length.
    """

    object: ObjectRecord
    format: str
    options: dict[str, Any]
    facts: Facts
    hint: bytes
    reads: bool = False


class Examined(msgspec.Struct, frozen=True):
    """What a recoder makes of an object.

    Attributes:
        samples: number of samples.
        record_bytes: total length of their records.
        records: the records, one after the other; empty without `Examine.reads`.
    """

    samples: int
    record_bytes: int
    records: bytes = b""


class Span(msgspec.Struct, frozen=True):
    """One sample in its object: the half-open byte range `[start, stop)`."""

    start: int
    stop: int


class Short(msgspec.Struct, frozen=True):
    """An index says that an object has no sample, because it is shorter than one.

    Attributes:
        length: length of the object, in `unit`.
        unit: unit of the length, and how much a sample has, as words that follow the length in a message.
        remedy: words for a message that name the option with which shorter objects have samples; "" if there is none.
    """

    length: float
    unit: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"the longest has {self.length:g} {self.unit}{self.remedy and f'; {self.remedy}'}"


class Note(msgspec.Struct, frozen=True):
    """An index says what it has left out of an object, or what the user may not have meant.

    Attributes:
        what: a sentence that begins with what is counted ("episodes are shorter ..."). Notes with the same sentence, of
            all objects, become one line.
        count: number of what is counted.
        example: the first one, in words.
    """

    what: str
    count: int
    example: str


class LeftOut(msgspec.Struct, frozen=True):
    """A survey or index says that a part of an object cannot be used (a row of a table, an episode); the rest can.

    Unless the user asked to leave such parts out, the build ends with an error that names them.

    Attributes:
        what: which part, and why, in words.
    """

    what: str


class Source(msgspec.Struct, frozen=True):
    """One object to index.

    Attributes:
        record: the object.
        notes: what the survey knows of it (its entry in an index file of the whole dataset), in the format's own bytes.
        sidecar: the object that contains an index of it, or None if there is none.
        chunk_bytes: wanted size of its chunks, set by the builder for formats that choose the size of a block.
        key: its path below the dataset's url, set by the builder for formats whose samples are named by it.
    """

    record: ObjectRecord
    notes: bytes = b""
    sidecar: ObjectRecord | None = None
    chunk_bytes: int = 8 << 20
    key: str = ""


class Survey(msgspec.Struct, frozen=True):
    """Result of a survey: what is known before the objects are indexed.

    Attributes:
        sources: the objects that contain samples, in the order of the samples.
        facts: facts about the whole dataset.
        read_bytes: maximum number of bytes that indexing will read; None means all bytes of the objects.
        rows: number of rows of the table that says what the samples are, or 0 if there is none. A row is a sample,
            unless it is left out.
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
        base: folder that the urls of the dataset share, up to the first pattern; "" if each url is an object.
        memories: what earlier surveys of the dataset have left (`Survey.memory`), the newest first.
    """

    base: str = ""
    memories: Sequence[bytes] = ()


# The answer that a survey or index is sent: the bytes of its need, or None to start it and after what it has found.
Answer: TypeAlias = memoryview | tuple[memoryview, ...] | Examined | None
# A survey yields its needs, several at once as a tuple, which is answered with a tuple; it returns its result.
Surveying: TypeAlias = Generator[Need | tuple[Need, ...] | Examine, Answer, Survey]
# An index also yields what it finds: samples (spans) or blocks, in the order of the object and never both in a dataset;
# why there are none; notes; and parts that cannot be used.
Indexing: TypeAlias = Generator[Need | tuple[Need, ...] | Examine | Span | Block | Short | Note | LeftOut, Answer, None]


class Indexer(Protocol):
    """The part of a format that the builder needs, so that the builder imports no format."""

    @property
    def name(self) -> str:
        """Name of the format, as users write it."""
        ...

    @property
    def revision(self) -> int:
        """Version of index and recoder, from 0 on: it grows when the same bytes get other records or hints."""
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
        """Whether an object found by listing a prefix is part of the dataset, by its path below the url."""
        ...

    def explain_empty(self, keys: Sequence[str]) -> str:
        """Returns why none of the objects of these names is accepted, as the end of a message; "" if not known."""
        ...

    def survey(self, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]) -> Surveying:
        """Chooses the objects that contain samples, and finds the facts about them. Not called for `whole_objects`.

        Args:
            accepted: the objects that the format accepts, in the order of the urls, then by name, or as the braces of a
                url name them.
            others: the other objects below the urls, by url.

        Raises:
            ManifestError: an index of the dataset cannot be read, or contradicts the listing.
        """
        ...

    def index(self, source: Source, facts: Facts, start: int = 0) -> Indexing:
        """Finds the samples of one object: yields `Need`s (answered with bytes), and what it finds (see `Indexing`).

        A format that reads all bytes asks for them in order, each once, so that chunks can be offered to the cache.
        Spans are in order and do not overlap.

        Args:
            source: the object.
            facts: the facts from the survey.
            start: byte at which to begin: that of the first sample that an earlier run over this object has not kept.

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
        """Surveys objects as `Indexer.survey` does, which is not called then."""
        ...


class Lister(Protocol):
    """Lists objects as an ObjectStore does: the engine's recorder, or the listers of `indexing/tasks.py`."""

    def list(self, url: str) -> AsyncIterator[Sequence[ObjectRecord]]:
        """Yields pages of the objects below `url`, with size and version; raises StoreError, ConfigError."""
        ...


class RangeReader(Protocol):
    """Reads ranges, with retries and pinned versions; the engine and tasks of an executor have one each."""

    async def read(self, extent: Extent) -> bytes:
        """Returns exactly the bytes of `extent`; raises StoreError, ConfigError."""
        ...


@runtime_checkable
class BoundedReader(Protocol):
    """A reader that bounds the bytes of metadata in memory at once: the engine's; that of tasks does not."""

    def hold(self, ranges: Sequence[Extent]) -> AbstractAsyncContextManager[None]:
        """Returns a context in which memory for the ranges is reserved: they are read and parsed inside.

        Raises:
            ManifestError: the longer ones of the ranges together have more bytes than this reader allows. It is raised
                at the entry of the context.
        """
        ...


@runtime_checkable
class Examiner(Protocol):
    """A reader that has recoders, which neither this package nor `indexing/build.py` imports."""

    async def examine(self, asked: Examine) -> Examined:
        """Recodes an object as one block, and returns what `asked` wants to know of it.

        Raises:
            ManifestError: the object cannot be decoded.
            StoreError: the object cannot be read.
            ConfigError: the format, or a library of it, is not installed.
        """
        ...


class IndexEstimate(msgspec.Struct, frozen=True):
    """The cost of a build, known after the listing and the survey.

    Attributes:
        objects: number of objects to index.
        total_bytes: sum of their sizes.
        read_bytes: maximum number of bytes that will be read; 0 if the listing is enough.
        requests: estimated range requests: of 8 MiB each if all bytes are read, else at least one for each object.
        chunk_bytes: wanted size of chunks.
        known_bytes: sum of the sizes of objects that are not read, because an earlier manifest has their samples.
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
        objects_done: number of objects that are indexed, known already or left out.
        objects: number of objects to index.
        bytes_done: bytes of the objects that an index has passed, whether it read or skipped them.
        total_bytes: sum of the sizes of all objects.
        read_bytes: bytes that indexes have read so far in this process, not in tasks.
        samples: number of samples of the indexed objects.
    """

    objects_done: int
    objects: int
    bytes_done: int
    total_bytes: int
    read_bytes: int
    samples: int


class IndexedChunk(Chunk, frozen=True):
    """A chunk whose bytes were read for the index, before its number is known.

    `index` and `first_sample` are -1, because they depend on objects that are still being read. All else is final.

    Attributes:
        sample_offsets: int64, shape (samples + 1,): byte of the chunk at which each sample begins, and its length.
    """

    sample_offsets: NDArray[np.int64] | None = None


# Callbacks of a build, see `indexing.build.BuildOptions`; `OnChunk` gets a chunk and its bytes as parts, in order.
OnEstimate = Callable[[IndexEstimate], None]
OnProgress = Callable[[BuildProgress], None]
OnNote = Callable[[Note], None]
OnChunk = Callable[[IndexedChunk, list[memoryview]], Awaitable[None]]
# Chooses the format of a dataset from the paths of its objects below the urls; raises ConfigError.
ChooseFormat = Callable[[Iterable[str]], Indexer]
