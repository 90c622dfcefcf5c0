"""Reads the samples of whole chunks one after the other, several chunks at the same time.

Packs (`loader/scan_reader.py`), columns for conditions and the keys of joins (`loader/members`) use it. The caller says
where the bytes come from: this package knows no connections. The commands `streamer index` and `streamer show` use only
the name of the key, `KEY`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from itertools import islice, pairwise
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from streamer.decode.dispatch import SampleDecoder
from streamer.errors import DecodeError
from streamer.formats.base import Field, SampleName
from streamer.formats.registry import open_format
from streamer.manifest.table import Manifest

# The field of a sample with its key.
KEY = "__key__"

# Chunks that are read at the same time; an engine shares its link among them.
_READERS = 8

Result = TypeVar("Result")


class ChunkSource(Protocol):
    """Reads the bytes of chunks, on one thread.

    `StreamedBytes` of the loader is one; this package does not import the loader.
    """

    def boundaries(self, chunk: int) -> npt.NDArray[np.int64]:
        """Returns the offsets in a chunk at which its samples begin, and the end of the last one: (samples + 1,)."""
        ...

    def read_chunk(self, chunk: int, start: int, stop: int) -> memoryview:
        """Returns the bytes [start, stop) of a chunk, counted from its first byte."""
        ...


class ScannedSample(NamedTuple):
    """A sample with its fields as they are stored.

    Attributes:
        key: Key of the sample, or its number in the manifest if it has none.
        fields: Undecoded fields by name.
    """

    key: str | int
    fields: Mapping[str, Field]


class MissingFieldError(DecodeError):
    """A sample has no field of the name that is asked for."""


class MissingPartError(DecodeError):
    """A field has no part of the name that is asked for."""


class ChunkScan:
    """Reads the samples of a manifest, a chunk or a part of one at a time. Used by several threads at once.

    Args:
        manifest: Manifest of the samples.
        open_bytes: Function that opens a source of the chunks' bytes. Each read opens and closes one of its own.

    Raises:
        ConfigError: the format is not installed, or lacks an option of the manifest.
        ManifestVersionError: the dataset was indexed by another revision of the format.
    """

    def __init__(self, manifest: Manifest, open_bytes: Callable[[], AbstractContextManager[ChunkSource]]) -> None:
        self._manifest = manifest
        self._open_bytes = open_bytes
        self._opener = open_format(manifest)

    def __repr__(self) -> str:
        return f"ChunkScan({self._manifest!r})"

    def read_samples(self, chunk: int, part: slice = slice(None)) -> Iterator[tuple[int, memoryview]]:
        """Reads a chunk, or a part of its samples, and yields the ordinal and the bytes of each sample.

        It takes one request, and for a recoded chunk one more.

        Args:
            chunk: Number of the chunk.
            part: Samples to read, by their places in the chunk, without a step.

        Raises:
            StreamerError: the error of the source, which could not read the bytes.
        """
        first = int(self._manifest.chunk_first[chunk])
        numbers = range(int(self._manifest.chunk_samples[chunk]))[part]
        with self._open_bytes() as content:
            bounds = content.boundaries(chunk)[numbers.start : numbers.stop + 1].tolist()
            held = content.read_chunk(chunk, bounds[0], bounds[-1])
        for number, (start, stop) in zip(numbers, pairwise(bounds), strict=True):
            yield first + number, held[start - bounds[0] : stop - bounds[0]]

    def open_sample(self, ordinal: int, content: memoryview) -> ScannedSample:
        """Splits the bytes of a sample into its key and its fields.

        Raises:
            DecodeError, ConfigError: The bytes do not have the format.
        """
        name = self._manifest.name(ordinal) if self._manifest.whole_objects else SampleName()
        key, fields = self._opener.open(content, name)
        return ScannedSample(ordinal if key is None else key, {field.name: field for field in fields})


def scan_chunks(chunks: Iterable[int], work: Callable[[int], Result]) -> Generator[Result]:
    """Yields the result of `work` for each chunk, in their order, while several threads work at the same time.

    At most twice as many chunks as threads are begun before their results are taken. When the generator is closed, it
    begins no more of them and waits for those that are running.

    Args:
        chunks: Numbers of the chunks.
        work: Function that reads the samples of a chunk and returns a result; it gets the number of the chunk.

    Raises:
        Exception: the error of `work`, in the place of its result.
    """
    with ThreadPoolExecutor(_READERS, "streamer-scan") as threads:
        waiting = iter(chunks)
        begun = deque(threads.submit(work, chunk) for chunk in islice(waiting, 2 * _READERS))
        try:
            while begun:
                yield begun.popleft().result()
                begun.extend(threads.submit(work, chunk) for chunk in islice(waiting, 1))
        finally:
            for future in begun:
                future.cancel()


def field_value(wanted: str, fields: Mapping[str, Field], decoder: SampleDecoder) -> object:
    """Decodes a field, and returns its value or the value of a part of it.

    Args:
        wanted: Name of the field, or of the field and its parts, such as "json.size.width". The longest name of a field
            counts.
        fields: Fields of a sample, by name.
        decoder: Decoder for the fields of samples.

    Returns:
        The value, or None if it is null. An array of one number is returned as that number, since some formats store
        single numbers only so.

    Raises:
        DecodeError: The bytes of the field are damaged, or its kind has no decoder.
        ConfigError: The field is a pickle that is not allowed, or a library is missing.
        MissingFieldError: The sample has no such field.
        MissingPartError: The field has no such part.
    """
    name = wanted
    parts = list[str]()
    while name not in fields and "." in name:
        name, _, part = name.rpartition(".")
        parts.insert(0, part)
    if name not in fields:
        raise MissingFieldError(f"it has no field {wanted!r}; it has {', '.join([KEY, *fields])}")
    value = decoder("", [fields[name]])[name]
    for part in parts:
        if value is None:
            return None
        if not isinstance(value, dict) or part not in value:
            known = ", ".join(map(str, value)) if isinstance(value, dict) else type(value).__name__
            raise MissingPartError(f"field {name!r} has no {part!r} ({known:.200})")
        value = value[part]
    return value.item() if isinstance(value, np.ndarray) and value.size == 1 else value
