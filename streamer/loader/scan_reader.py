"""Reads samples of an opened dataset in an order that is known before, by one session with the engine.

`dataset_scan.py` uses it, for packs and for `measure_lengths`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Generic, Protocol, TypeVar

import numpy as np

from streamer.batches.samples.cached_bytes import CachedBytes, ChunkUnreadableError
from streamer.batches.samples.joins import JoinReader
from streamer.batches.samples.maker import (
    ByteSource,
    Integers,
    SampleLocation,
    SampleMaker,
    SampleRules,
    describe_key,
)
from streamer.batches.samples.opened import Members, OpenedDataset
from streamer.batches.samples.stored import StoredReader, find_steps, find_uses
from streamer.batches.scan import KEY, ChunkScan, scan_chunks
from streamer.batches.waiting import WaitNotice
from streamer.client.chunk_reader import ChunkReader
from streamer.client.engine_client import EngineClient
from streamer.client.session import Session
from streamer.config import Environment
from streamer.decode.rule import StoredSample
from streamer.errors import PackError, StreamerError
from streamer.loader.kinds.step_session import open_bytes, read_leased
from streamer.loader.members.member import DatasetMember
from streamer.loader.members.single_reads import stream_bytes
from streamer.manifest.table import Manifest
from streamer.wire.messages import OpenSession, Part
from streamer.wire.schedule import EpochSchedule

logger = logging.getLogger(__name__)

# A step of the session has at most so many bytes and samples: it costs a message, and its chunks are in the cache
# together.
_STEP_BYTES = 16 << 20
_STEP_SAMPLES = 1024


Found = TypeVar("Found")
Found_co = TypeVar("Found_co", covariant=True)


class _LeasedReader(Protocol[Found_co]):
    """Reads samples of a step whose chunks are leased: `begin` locates all of them, `read` reads one."""

    def begin(self, ordinals: Integers) -> list[SampleLocation]: ...

    def read(self, place: SampleLocation) -> Found_co: ...


class SampleScan:
    """Reads samples of an opened dataset, in one thread.

    Chunks come through the cache of this machine, where those with the rows of joins stay as long as they can. Files
    that are read in another order than they lie in chunks are read one by one, since such a chunk would be fetched
    again for each of them.

    Args:
        member: Dataset, with its connections and those that it is joined to.
        opened: Manifest of the dataset and what belongs to it.
        rules: Rules by which samples are made.
        purpose: Name of the reader in statistics and logs.
    """

    def __init__(self, member: DatasetMember, opened: OpenedDataset, rules: SampleRules, purpose: str) -> None:
        self._member = member
        self._opened = opened
        self._rules = rules
        self._purpose = purpose
        self._members = Members([opened])

    def read(self, ordinals: Integers) -> Generator[StoredSample]:
        """Yields the fields of each sample: as they are stored, or as the transform returns them if there is one.

        Args:
            ordinals: Numbers of the samples in the manifest, in the order in which they are read.

        Raises:
            StreamerError: the engine's error, or that of a sample, such as a chunk that is still wrong.
            PackError: the transform has failed, or returns no dict.
            FileNotFoundError: a chunk is still missing after it was leased again.
        """
        if self._rules.transform is not None:
            return self.make(ordinals, partial(_read_fields, self._opened.manifest))
        return self._scan(ordinals, self._open_field_reader)

    def make(self, ordinals: Integers, read: Callable[[SampleMaker, SampleLocation], Found]) -> Generator[Found]:
        """Yields what `read` returns for each sample.

        Args:
            ordinals: Numbers of the samples in the manifest, in the order in which they are read.
            read: Reads one sample with the maker of this process.

        Raises:
            StreamerError: the engine's error.
            FileNotFoundError: a chunk is still missing after it was leased again.
            Exception: what else `read` raises.
        """
        return self._scan(ordinals, partial(self._open_maker, read))

    def _scan(
        self, ordinals: Integers, open_reader: Callable[[ByteSource, list[JoinReader]], _LeasedReader[Found]]
    ) -> Generator[Found]:
        """Opens a session for some samples, and yields what a reader returns for each of them, in their order."""
        manifest = self._opened.manifest
        chunks = manifest.find_chunks(ordinals)
        scattered = manifest.whole_objects and not manifest.recoded and bool((np.diff(ordinals) < 0).any())
        by_one = (manifest.chunk_samples[chunks] > 1) & scattered
        sizes = (manifest.chunk_local_bytes // np.maximum(1, manifest.chunk_samples))[chunks]
        rows_of_joins = [join.table.rows_of(ordinals) for join in self._opened.joins]
        row_bytes = sum_row_bytes(self._opened, rows_of_joins, len(ordinals))
        steps = find_steps(sizes + row_bytes, _STEP_BYTES, _STEP_SAMPLES)
        # The chunks of samples that are not read one by one, and of all rows of joins.
        used = [(chunks[~by_one], steps[~by_one])]
        first_chunks = self._members.first_chunks_of_parts[1:]
        for join, first, (owner, rows) in zip(self._opened.joins, first_chunks, rows_of_joins, strict=False):
            used.append((join.manifest.find_chunks(rows) + first, steps[owner]))
        chunk, first_step, last_step = find_uses(*(np.concatenate(column) for column in zip(*used, strict=True)))
        schedule = EpochSchedule(0, chunk.astype(np.uint32), first_step, last_step)
        notice = WaitNotice(logger)
        with ExitStack() as held:
            connection = self._member.connections.take()
            held.callback(self._member.connections.give_back, connection)
            session = held.enter_context(closing(self._open_session(connection, schedule)))
            chunk_files = ChunkReader(connection.roots())
            content: ByteSource = CachedBytes(manifest, chunk_files)
            if scattered:
                content = held.enter_context(
                    closing(_ScatteredFiles(self._member, manifest, ordinals[by_one], content))
                )
            joins = [
                join.reader(CachedBytes(join.manifest, chunk_files, first))
                for join, first in zip(self._opened.joins, first_chunks, strict=False)
            ]
            reader = open_reader(content, joins)
            waits_for = f"the chunks of a {self._purpose}, which come from the store"
            for step, some in enumerate(np.split(ordinals, np.flatnonzero(np.diff(steps)) + 1)):
                # A step of files alone needs no chunk.
                needed = min(step, schedule.final_step)
                notice.wait(partial(session.wait, needed), lambda: waits_for)
                for place in read_leased(session, needed, partial(reader.begin, some)):
                    yield read_leased(session, needed, partial(reader.read, place))
                session.done(step + 1)

    def _open_field_reader(self, content: ByteSource, joins: list[JoinReader]) -> StoredReader:
        return StoredReader(self._opened.manifest, content, self._rules, joins)

    def _open_maker(
        self, read: Callable[[SampleMaker, SampleLocation], Found], content: ByteSource, joins: list[JoinReader]
    ) -> _MadeReader[Found]:
        return _MadeReader(SampleMaker(self._opened.manifest, content, rules=self._rules, joins=joins), read)

    def _open_session(self, connection: EngineClient, schedule: EpochSchedule) -> Session:
        """Opens a session that reads a schedule: the dataset alone, or with the right sides of its joins as parts."""
        members = self._members
        opened = open_bytes(schedule, members.chunk_bytes, members.first_chunks_of_parts).tolist()
        parts: tuple[Part, ...] = ()
        if members.joins:
            # The dataset and what it is joined to, each with its storage options.
            names = ["", *(join.recipe.name for _, join in members.joins)]
            environment = Environment.read()
            options = [
                each.options.client_settings(environment, each.job).encode_options()
                for each in (self._member, *self._member.rights)
            ]
            columns = (members.manifests, names, options, members.part_values((1.0,)), opened)
            parts = tuple(
                Part(dataset=manifest.digest, name=name, options=options, value=value, open_bytes=open_bytes)
                for manifest, name, options, value, open_bytes in zip(*columns, strict=True)
            )
        spec = OpenSession(
            session=0,
            job="",
            dataset=self._opened.manifest.digest,
            consumer=self._purpose,
            open_bytes=opened[0],
            stream=self._purpose,
            parts=parts,
        )
        session = connection.open_session(spec, members.cache_full_hint(opened))
        session.extend(schedule)
        return session


class _ScatteredFiles:
    """Reads files one by one from the store, in an order that is known before, a few at the same time.

    A file that is a chunk of its own is read from its leased chunk.

    Args:
        member: Dataset, whose connections read files.
        manifest: Manifest of the dataset.
        ordinals: Numbers of the files that lie in chunks with others, in the order in which they are read.
        leased: Reads samples of leased chunks.
    """

    def __init__(self, member: DatasetMember, manifest: Manifest, ordinals: Integers, leased: ByteSource) -> None:
        scan = ChunkScan(manifest, partial(stream_bytes, member.connections, manifest))

        def read_file(ordinal: int) -> tuple[int, memoryview]:
            chunk = int(manifest.chunk_first.searchsorted(ordinal, "right")) - 1
            at = ordinal - int(manifest.chunk_first[chunk])
            return next(scan.read_samples(chunk, slice(at, at + 1)))

        self._leased = leased
        self._shared = manifest.chunk_samples > 1
        self._coming = scan_chunks(ordinals.tolist(), read_file)
        self._last: tuple[int, memoryview] = (-1, memoryview(b""))

    def boundaries(self, chunk: int) -> Integers:
        """Returns the boundaries of the samples of a chunk; see `ByteSource`."""
        return self._leased.boundaries(chunk)

    def read(self, place: SampleLocation) -> memoryview:
        """Returns the bytes of a file; it must be the next one in the order, or once more the last one."""
        if not self._shared[place.chunk]:
            return self._leased.read(place)
        if self._last[0] != place.ordinal:
            self._last = next(self._coming)
        return self._last[1]

    def read_each(self, places: Sequence[SampleLocation]) -> list[memoryview]:
        """Returns the bytes of several files, which are the next ones in the order."""
        return [self.read(place) for place in places]

    def close(self) -> None:
        """Ends the reading of further files."""
        self._coming.close()


class _MadeReader(Generic[Found]):
    """Reads samples by a function that is given the maker, which also applies the transform. Used by one thread."""

    def __init__(self, maker: SampleMaker, read: Callable[[SampleMaker, SampleLocation], Found]) -> None:
        self._maker = maker
        self._read = read

    def begin(self, ordinals: Integers) -> list[SampleLocation]:
        """Locates some samples; see `StoredReader.begin`."""
        places = self._maker.places(ordinals)
        self._maker.begin(places)
        return places

    def read(self, place: SampleLocation) -> Found:
        """Reads one sample; raises what the function raises."""
        return self._read(self._maker, place)


def _read_fields(manifest: Manifest, maker: SampleMaker, place: SampleLocation) -> StoredSample:
    """Makes one sample, and returns it with the fields that the transform returns.

    Args:
        manifest: Manifest of the dataset.
        maker: Maker whose rules have the transform.
        place: Place of the sample.

    Raises:
        PackError: the transform has failed, or returns no dict.
        ChunkUnreadableError, DecodeError: see `SampleMaker.make`.
    """
    where = f"sample {place.ordinal} of {describe_key(manifest, place.ordinal)}"
    try:
        made = maker.make(place)
    except (StreamerError, ChunkUnreadableError):
        raise
    except Exception as error:  # the user's code may raise anything
        text = f"{where}: the transform of the dataset raised {type(error).__name__}: {error}"
        raise PackError(text, sample=place.ordinal) from error
    if not isinstance(made, Mapping):
        raise PackError(
            f"{where}: the transform of the dataset returned {type(made).__name__}, not a dict of fields",
            sample=place.ordinal,
        )
    fields = [(name, value) for name, value in made.items() if name != KEY]
    return StoredSample(ordinal=place.ordinal, where=where, key=made.get(KEY), fields=fields)


def count_row_bytes(opened: OpenedDataset, ordinals: Integers) -> Integers:
    """Returns about how many bytes each of n samples gets from the right sides of joins: int64, (n,)."""
    return sum_row_bytes(opened, [join.table.rows_of(ordinals) for join in opened.joins], len(ordinals))


def sum_row_bytes(opened: OpenedDataset, rows_of_joins: Sequence[tuple[Integers, Integers]], samples: int) -> Integers:
    """Returns what `count_row_bytes` returns, for rows that were looked up already.

    Args:
        opened: the dataset.
        rows_of_joins: result of `rows_of` of each join's table for the samples.
        samples: number of the samples.
    """
    total = np.zeros(samples, np.int64)
    for join, (owner, rows) in zip(opened.joins, rows_of_joins, strict=True):
        part = join.manifest
        mean = part.chunk_local_bytes // np.maximum(1, part.chunk_samples)
        total += np.bincount(owner, weights=mean[part.find_chunks(rows)], minlength=samples).astype(np.int64)
    return total
