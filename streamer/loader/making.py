"""One sample, from its ordinal to what the training gets: locate, read, open, decode, transform. Imports no torch."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from streamer.client.reader import ChunkReader, Wanted
from streamer.decode.dispatch import DecodeRule, SampleDecoder
from streamer.errors import DecodeError, IntegrityError
from streamer.formats import find_format
from streamer.formats.base import Field, Format
from streamer.loader.source import ChunkUnreadableError
from streamer.manifest.table import Manifest
from streamer.order.hashing import fold

Sample = dict[str, object]
# Called with the sample; also with `rng=` if it has a parameter of that name.
Transform = Callable[..., object]

# Separates the draws of transforms from those of the order.
TAG_TRANSFORM = 16


@dataclass(frozen=True, slots=True)
class Place:
    """Where a sample lies.

    Attributes:
        ordinal: its number in the manifest.
        chunk: number of its chunk.
        sample: its number in the chunk.
        start, stop: chunk-local bytes, half-open.
    """

    ordinal: int
    chunk: int
    sample: int
    start: int
    stop: int


class ByteSource(Protocol):
    """Hands out the bytes of samples."""

    def read(self, place: Place) -> memoryview:
        """The sample's bytes, checked."""
        ...


class CachedBytes:
    """Reads from the chunk files that the engine has made local."""

    def __init__(self, manifest: Manifest, roots: Sequence[Path]) -> None:
        self._manifest = manifest
        self._reader = ChunkReader(roots)

    def read(self, place: Place) -> memoryview:
        """Reads one sample.

        Raises:
            ChunkUnreadableError: the chunk is gone or wrong: reject it, wait for it, read again.
        """
        if place.start == place.stop:
            return memoryview(b"")
        manifest, chunk = self._manifest, place.chunk
        try:
            return self._reader.read(
                manifest.chunk_keys[chunk].tobytes(),
                int(manifest.chunk_local_bytes[chunk]),
                int(manifest.chunk_samples[chunk]),
                [Wanted(place.sample, place.start, place.stop)],
            )[0]
        except FileNotFoundError as error:
            raise ChunkUnreadableError(chunk, f"missing: {error.filename}") from error
        except IntegrityError as error:
            raise ChunkUnreadableError(chunk, f"wrong bytes: {error}") from error


@dataclass(frozen=True, kw_only=True)
class SampleRules:
    """What is done with a sample's bytes.

    Attributes:
        decode: see `streamer.decode`.
        transform: sample dict -> anything; None: the dict itself.
        allow_pickle: read fields that run code.
        seed: what each sample's `rng` is drawn from, with epoch and ordinal.
    """

    decode: DecodeRule = "auto"
    transform: Transform | None = None
    allow_pickle: bool = False
    seed: int = 0


class SampleMaker:
    """Turns places into samples. Used by one thread at a time.

    Args:
        manifest: what exists.
        content: where bytes come from.
        rules: what is done with them.
    """

    def __init__(self, manifest: Manifest, content: ByteSource, rules: SampleRules) -> None:
        self._manifest = manifest
        self._content = content
        self._rules = rules
        self._format: Format = find_format(manifest.format)
        self._decode = SampleDecoder(rules.decode, allow_pickle=rules.allow_pickle)
        self._draws = _Draws(rules.seed) if takes_rng(rules.transform) else None
        self._nanoseconds = [0, 0, 0]

    def places(self, ordinals: npt.NDArray[np.int64]) -> list[Place]:
        """Locates samples by their numbers in the manifest."""
        chunks, starts, stops = self._manifest.locate(ordinals)
        samples = ordinals - self._manifest.chunk_first[chunks]
        columns = (ordinals.tolist(), chunks.tolist(), samples.tolist(), starts.tolist(), stops.tolist())
        return [Place(*row) for row in zip(*columns, strict=True)]

    def make(self, epoch: int, place: Place) -> object:
        """Reads, opens, decodes and transforms one sample.

        Raises:
            ChunkUnreadableError: its bytes are gone or wrong.
            DecodeError: its bytes are not what they should be; names sample, object and decoder.
        """
        started = time.perf_counter_ns()
        content = self._content.read(place)
        was_read = time.perf_counter_ns()
        sample = self.decode(place, content)
        decoded = time.perf_counter_ns()
        made = self.transform(epoch, place.ordinal, sample)
        self._account(was_read - started, decoded - was_read, time.perf_counter_ns() - decoded)
        return made

    def decode(self, place: Place, content: memoryview) -> Sample:
        """A sample's bytes as a dict with the trade's keys; the class folder's number as "label".

        Raises:
            DecodeError: as above.
        """
        name = self._manifest.name(place.ordinal)
        try:
            key, fields = self._format.open(content, name)
            return self._labelled(self._decode(key, fields), name.label)
        except DecodeError as error:
            raise self._located(error, place) from error

    def fields(self, place: Place) -> tuple[str, Sequence[Field]]:
        """Key and undecoded fields, for looking."""
        return self._format.open(self._content.read(place), self._manifest.name(place.ordinal))

    def transform(self, epoch: int, ordinal: int, sample: Sample) -> object:
        """Applies the user's function; its randomness depends on seed, epoch and ordinal only."""
        transform = self._rules.transform
        if transform is None:
            return sample
        if self._draws is None:
            return transform(sample)
        return transform(sample, rng=self._draws.at(epoch, ordinal))

    def stage_nanoseconds(self) -> tuple[int, int, int]:
        """Read, decode, transform: nanoseconds so far."""
        read, decode, transform = self._nanoseconds
        return read, decode, transform

    def _account(self, *spent: int) -> None:
        for stage, nanoseconds in enumerate(spent):
            self._nanoseconds[stage] += nanoseconds

    @staticmethod
    def _labelled(sample: Sample, label: int) -> Sample:
        if label >= 0:
            sample["label"] = label
        return sample

    def _located(self, error: DecodeError, place: Place) -> DecodeError:
        where = _where(self._manifest, place.chunk, place.start, place.stop)
        return DecodeError(
            f"{error.message} (sample {place.ordinal}, {where or 'no bytes'})",
            **{**error.details, "ordinal": place.ordinal, "object": where},
        )


def sample_key(manifest: Manifest, ordinal: int) -> str:
    """Names a sample for people: its path below the url; in containers, which keep the names, object and byte range."""
    if manifest.whole_objects:
        return manifest.name(ordinal).object_key
    chunk, start, stop = (int(column[0]) for column in manifest.locate(np.array([ordinal], np.int64)))
    return _where(manifest, chunk, start, stop) or f"chunk {chunk}"


def _where(manifest: Manifest, chunk: int, start: int, stop: int) -> str:
    """Object and byte range of chunk-local bytes; "" where there are none."""
    offset = 0
    for extent in manifest.chunk(chunk).extents:
        if start < offset + extent.length:
            at = extent.start + start - offset
            return f"{extent.object.url} [{at}, {at + stop - start})"
        offset += extent.length
    return ""


class _Draws:
    """A generator per sample, set anew instead of made anew (6.6 against 16 us, 2026-11-20)."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._bits = np.random.Philox(0)
        self._blank = self._bits.state

    @cached_property
    def _generator(self) -> np.random.Generator:
        return np.random.Generator(self._bits)

    def at(self, epoch: int, ordinal: int) -> np.random.Generator:
        """The generator of one sample in one epoch; valid until the next call."""
        key = np.array([fold(self._seed, TAG_TRANSFORM, epoch), ordinal], np.uint64)
        self._bits.state = {**self._blank, "state": {"counter": np.zeros(4, np.uint64), "key": key}}
        return self._generator


def takes_rng(transform: Transform | None) -> bool:
    """Whether the user's function has a parameter `rng` that can be given by name."""
    if transform is None:
        return False
    try:
        parameter = inspect.signature(transform).parameters.get("rng")
    except (TypeError, ValueError):  # some callables of C extensions do not tell
        return False
    return parameter is not None and parameter.kind is not parameter.POSITIONAL_ONLY
