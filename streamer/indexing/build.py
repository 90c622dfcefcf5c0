"""Builds a manifest: lists the objects, finds their samples, cuts these into chunks, and publishes the rows.

Used by `engine/manifests/manifests.py`, `indexing/source.py` (in tasks), `shards/finish.py` and `streamer index`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from streamer.base.concurrency import map_concurrently
from streamer.errors import ConfigError, ManifestError
from streamer.indexing.container_rows import (
    WINDOW_BYTES,
    Budget,
    Container,
    Partial,
    index_container,
    max_open_bytes,
)
from streamer.indexing.index_log import IndexLogs
from streamer.indexing.known import take_over
from streamer.indexing.listed_rows import ListedDataset, Listing, OrderOf, list_objects
from streamer.indexing.publish import publish
from streamer.indexing.rows import Contained, ManifestRows, rows_of_objects
from streamer.indexing.survey import Surveyed, keep_memory, read_memories, survey_objects
from streamer.manifest.blocks import Block
from streamer.manifest.chunking import Cut, choose_chunk_bytes, hash_keys, pack_in_order, pack_objects
from streamer.manifest.columns import decode_text
from streamer.manifest.model import Extent
from streamer.manifest.protocols import (
    BuildProgress,
    ChooseFormat,
    Indexer,
    IndexEstimate,
    LeftOut,
    Lister,
    Need,
    Note,
    OnChunk,
    OnEstimate,
    OnProgress,
    RangeReader,
    Short,
)
from streamer.manifest.table import Manifest

# First bytes that are read of a doubtful file: the longest mark of a format.
_START_BYTES = 16
# Number of parts that a message names of those that are left out; it counts the others.
_NAMED = 10
_LEAVE_OUT = "leave them out (Index(damaged='skip'), --damaged skip)"
# Enough for 8 containers whose chunks are kept, or 16 others. With 1 GiB, all of the fetcher's memory, no page is used
# twice: an index of 1.1 GB took 0.81 GB more of memory and 1.6 s more of CPU (2026-11-25).
MEMORY_BYTES = 256 << 20


# Indexes containers in other processes: yields, in any order, the place of a container among those given, and what is
# found in it, a note about it, or the error if it is damaged. Raises StoreError if a store cannot be read.
Elsewhere = Callable[
    [Sequence[Container], Indexer],
    AsyncGenerator[tuple[int, Cut | list[Block] | Short | Partial | Note | ManifestError], None],
]


class BuildOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a build.

    Attributes:
        chunk_bytes: wanted size of chunks in bytes, or "auto" for the rule in `manifest/chunking.py`.
        concurrency: requests in flight while indexing and listing.
        memory_bytes: total bytes of windows in memory, at least those of one container (see container_rows.py).
        on_estimate: called with the cost, after listing and survey. It may raise to stop; None means no call, as below.
        on_progress: called after each range read here and each object, for raw files once. It may raise to stop.
        on_chunk: called with each chunk whose bytes were all read here for the index, and those bytes.
        logs: keep the findings, with which a build that was killed continues. None means that nothing is kept.
        in_key_order: whether raw files stay in the order of url and key, not of the hashes of their keys, which mix the
            classes of a chunk. Has no effect on containers.
        known: manifests from which the rows of unchanged objects are taken, so that these are not read.
        order_of: order of the objects that a url with braces names, see `list_objects`.
        on_note: called with a line about rows that give no sample, about samples left out, and for notes of indexes.
        on_damage: called with lines about what cannot be used and is left out (containers, rows of tables, episodes):
            their number, and the first ones. None means that they are an error.
        elsewhere: indexes the containers in other processes. None means that this process does.
        doubtful: returns the place, among the names of all raw files, of one whose first bytes are to be read, or None.
        check_start: called with the url and the first bytes of the file that `doubtful` names. It may raise to stop.
    """

    chunk_bytes: int | Literal["auto"] = "auto"
    # 16 x 90 MB/s is 10 Gbit/s.
    concurrency: int = 16
    memory_bytes: int = MEMORY_BYTES
    on_estimate: OnEstimate | None = None
    on_progress: OnProgress | None = None
    on_chunk: OnChunk | None = None
    logs: IndexLogs | None = None
    in_key_order: bool = False
    known: Sequence[Manifest] = ()
    order_of: OrderOf = lambda url: None
    on_note: Callable[[str], None] = lambda note: None
    on_damage: Callable[[str], None] | None = None
    elsewhere: Elsewhere | None = None
    doubtful: Callable[[Sequence[str]], int | None] = lambda keys: None
    check_start: Callable[[str, bytes], None] = lambda url, start: None


async def build(
    urls: str | Sequence[str],
    root: Path,
    *,
    lister: Lister,
    reader: RangeReader,
    choose_format: ChooseFormat,
    options: BuildOptions | None = None,
) -> Manifest:
    """Indexes a dataset, publishes its manifest as `<root>/<digest>/`, and opens it.

    The result does not depend on the order in which reads complete.

    Args:
        urls: a prefix, an object or a glob, or several of them, of which containers keep the order.
        root: folder of manifests on the local disk, which is created if it is missing.
        lister: lists urls, as an ObjectStore does.
        reader: reads ranges, as a Fetcher does.
        choose_format: returns the format, given the object names, as `formats.detect.chooser("auto")` does.
        options: sizes, bounds and callbacks. None means the defaults.

    Raises:
        ManifestError: there is no sample, an object cannot be read or used, or the manifest cannot be written.
        ConfigError: see `list_objects` and `choose_chunk_bytes`; no urls, or a library of the format is not installed.
        StoreError: the store failed.
    """
    options = options or BuildOptions()
    wanted = (urls,) if isinstance(urls, str) else tuple(urls)
    if not wanted:
        raise ConfigError("urls is empty; name at least one prefix or object", field="urls")
    listed = await list_objects(
        urls=wanted,
        lister=lister,
        choose_format=choose_format,
        concurrency=options.concurrency,
        order_of=options.order_of,
    )
    if listed.indexer.whole_objects:
        await _check_start(listed.listing, reader, options)
        rows = await _whole_objects(listed, options)
        why = ""
        memory = b""
    else:
        rows, why, memory = await _containers(listed, reader, options)
    if not rows.samples:
        raise ManifestError(
            f"{len(rows.listing)} objects below {', '.join(wanted)} have no sample in them"
            f"{_describe_options(listed.indexer)}{why and f': {why}'}",
            urls=", ".join(wanted),
            objects=len(rows.listing),
        )
    manifest = Manifest.open(await asyncio.to_thread(publish, rows, root))
    if memory:
        await asyncio.to_thread(keep_memory, manifest, memory)
    return manifest


async def _check_start(listing: Listing, reader: RangeReader, options: BuildOptions) -> None:
    """Reads the first bytes of the file that `doubtful` names, if it names one, and gives them to `check_start`."""
    # A thread looks: 10^6 names take half a second.
    place = await asyncio.to_thread(lambda: options.doubtful([decode_text(key) for key in listing.keys]))
    if place is not None and (record := listing.record(place)).size:
        options.check_start(record.url, await reader.read(Extent(record, 0, min(_START_BYTES, record.size))))


def _describe_options(indexer: Indexer) -> str:
    """Returns the options of the format as part of a message, since they may be why samples are missing; or ""."""
    options = ", ".join(f"{name}={value!r}" for name, value in indexer.options.items())
    return f" (format {indexer.name!r} with {options})" if options else ""


async def _whole_objects(listed: ListedDataset, options: BuildOptions) -> ManifestRows:
    """Packs objects that are one sample each into chunks; reads none of them. Reports cost and progress."""
    listing = listed.listing
    total_bytes = int(listing.sizes.sum())
    chunk_bytes = choose_chunk_bytes(options.chunk_bytes, listing.sizes, True)
    if options.on_estimate:
        options.on_estimate(IndexEstimate(len(listing), total_bytes, read_bytes=0, requests=0, chunk_bytes=chunk_bytes))
    # A thread does it: 10^6 raw files take 5 s of CPU, and the loop serves other clients meanwhile.
    rows = await asyncio.to_thread(_pack, listing, listed.indexer, chunk_bytes, options.in_key_order)
    if options.on_progress:
        count = len(listing)
        options.on_progress(
            BuildProgress(
                objects_done=count,
                objects=count,
                bytes_done=total_bytes,
                total_bytes=total_bytes,
                read_bytes=0,
                samples=count,
            )
        )
    return rows


def _pack(listing: Listing, chosen: Indexer, chunk_bytes: int, in_key_order: bool) -> ManifestRows:
    pack = pack_in_order if in_key_order else pack_objects
    order, first = pack(hash_keys(listing.keys), listing.sizes, chunk_bytes)
    rows = rows_of_objects(listing=listing, format_name=chosen.name, chunk_bytes=chunk_bytes, order=order, first=first)
    return msgspec.structs.replace(rows, indexer=chosen)


async def _containers(
    listed: ListedDataset, reader: RangeReader, options: BuildOptions
) -> tuple[ManifestRows, str, bytes]:
    """Surveys and indexes containers, and reports what is left out.

    Returns:
        The rows, why there are none ("" if that is not known), and what the survey leaves for the next one.
    """
    memories = await asyncio.to_thread(read_memories, options.known)
    skips = options.on_damage is not None
    surveyed = await survey_objects(listed, reader, options.concurrency, skips=skips, memories=memories)
    chunk_bytes = choose_chunk_bytes(options.chunk_bytes, surveyed.listing.sizes, False)
    survey = surveyed.survey
    indexer = listed.indexer
    # A thread does it: 10^5 objects take a second.
    known = await asyncio.to_thread(take_over, survey.sources, options.known, indexer, survey.facts, chunk_bytes)
    if options.on_estimate:
        options.on_estimate(await asyncio.to_thread(_estimate, surveyed, known, chunk_bytes))
    _leave_out(survey.left_out, options, "rows or parts of the dataset")
    indexed = _Indexed(
        surveyed=surveyed, chosen=listed.indexer, chunk_bytes=chunk_bytes, reader=reader, options=options
    )
    rows = await indexed.rows(known)
    if (empty := survey.rows - indexed.rows_left_out - rows.samples) > 0:
        options.on_note(f"{empty} of {survey.rows} rows have no sample in them{_describe_options(indexer)}")
    if indexed.left_out:
        options.on_note(f"samples over a change of codec parameters, which are left out: {indexed.left_out}")
    for note in indexed.notes.values():
        options.on_note(f"{note.count} {note.what} (the first is {note.example})")
    return rows, str(indexed.longest or ""), survey.memory


def _leave_out(parts: Sequence[LeftOut], options: BuildOptions, what: str) -> None:
    """Reports parts that the index cannot use to `on_damage`; without it, raises ManifestError if there are any."""
    if not parts:
        return
    named = [part.what for part in parts[:_NAMED]]
    more = [f"{len(parts) - _NAMED} more"] if len(parts) > _NAMED else []
    if options.on_damage is None:
        raise ManifestError(
            f"{len(parts)} {what} cannot be used: {'; '.join([*named, *more])}; correct them, or {_LEAVE_OUT}",
            left_out=len(parts),
        )
    options.on_damage(f"{len(parts)} {what} cannot be used and are left out")
    for line in [*named, *more]:
        options.on_damage(f"left out: {line}")


def _estimate(surveyed: Surveyed, known: Collection[int], chunk_bytes: int) -> IndexEstimate:
    """Returns the cost of indexing containers; `known` has the numbers of those that are not read again."""
    sizes = surveyed.listing.sizes
    most = surveyed.survey.read_bytes
    unknown = np.delete(sizes, list(known))
    read_bytes = int(unknown.sum()) if most is None else min(most, int(unknown.sum()))
    windows = int((-(-unknown // WINDOW_BYTES)).sum())
    return IndexEstimate(
        objects=len(sizes),
        total_bytes=int(sizes.sum()),
        read_bytes=read_bytes,
        requests=windows if most is None else max(len(unknown), -(-read_bytes // WINDOW_BYTES)),
        chunk_bytes=chunk_bytes,
        known_bytes=int(sizes.sum() - unknown.sum()),
    )


class _Indexed:
    """Indexes all containers once; counts its work for the progress.

    Attributes:
        longest: the longest of the containers that are shorter than a sample, or None if there is none.
        left_out: number of samples that blocks have left out (see `Block`), without those of known containers.
        notes: notes about all containers that were not known, by what they say.
    """

    def __init__(
        self, surveyed: Surveyed, chosen: Indexer, chunk_bytes: int, reader: RangeReader, options: BuildOptions
    ) -> None:
        self._listing = surveyed.listing
        self._survey = surveyed.survey
        self._chosen = chosen
        self._chunk_bytes = chunk_bytes
        self._reader = reader
        self._options = options
        kept_bytes = max_open_bytes(chunk_bytes) if options.on_chunk else 0
        self._budget = Budget.divide(options.memory_bytes, options.concurrency, self._listing.sizes, kept_bytes)
        self._total_bytes = int(self._listing.sizes.sum())
        self._done = self._done_bytes = self._read_bytes = self._samples = 0
        self._damages: dict[int, ManifestError] = {}
        self._left_out: dict[int, list[LeftOut]] = {}
        self._unread = surveyed.damages
        self.longest: Short | None = None
        self.left_out = 0
        self.notes: dict[str, Note] = {}

    @property
    def rows_left_out(self) -> int:
        """Number of parts that are left out of containers whose other parts are used."""
        return sum(map(len, self._left_out.values()))

    async def rows(self, known: Mapping[int, Cut | list[Block]]) -> ManifestRows:
        """Indexes the containers that `known` does not have, and returns the rows of all; raises as `build`."""
        # Threads look at all of them: 10^6 take seconds.
        unknown = await asyncio.to_thread(self._count_known, known)
        indexed: list[Cut | list[Block] | None]
        if self._options.elsewhere is None:
            indexed = await map_concurrently(self._index_or_leave, unknown, self._budget.parallel_objects)
        else:
            indexed = [None] * len(unknown)
            containers = [self._container(number) for number in unknown]
            async with aclosing(self._options.elsewhere(containers, self._chosen)) as coming:
                async for place, cut in coming:
                    if isinstance(cut, Note):
                        self._add_note(cut, unknown[place])
                    elif isinstance(cut, ManifestError):
                        self._leave(unknown[place], cut)
                    else:
                        indexed[place] = self._count_object(unknown[place], cut, 0)
                    self._report()
        return await asyncio.to_thread(lambda: self._join({**known, **dict(zip(unknown, indexed, strict=True))}))

    def _count_known(self, known: Mapping[int, Cut | list[Block]]) -> list[int]:
        """Counts the containers that are known; returns the numbers of the others."""
        for number, cut in known.items():
            self._count_object(number, cut, 0)
        return [number for number in range(len(self._listing)) if number not in known]

    def _join(self, found: Mapping[int, Cut | list[Block] | None]) -> ManifestRows:
        """Returns the rows of all containers and reports what is left out; raises ManifestError if all are damaged."""
        numbers = range(len(self._listing))
        cuts = [found[number] for number in numbers]
        listing = self._listing
        good = [cut for cut in cuts if cut is not None]
        left_out = [each for number in sorted(self._left_out) for each in self._left_out[number]]
        _leave_out(left_out, self._options, "rows or parts of objects")
        if self._damages or self._unread:
            assert self._options.on_damage is not None
            damages = [*self._unread, *(self._damages[number] for number in sorted(self._damages))]
            if len(damages) == (objects := len(self._listing) + len(self._unread)):
                raise damages[0]
            self._options.on_damage(
                f"{len(damages)} of {objects} objects cannot be read and are left out, with all their samples"
            )
            for damage in damages[:_NAMED]:
                reason = damage.details.get("reason", damage.message)
                self._options.on_damage(f"left out: {damage.details['url']}: {reason}")
            if len(damages) > _NAMED:
                self._options.on_damage(f"left out: {len(damages) - _NAMED} more")
            listing = listing.only([number for number in numbers if cuts[number] is not None])
        contained = Contained(listing, self._chosen, self._survey.facts, self._chunk_bytes)
        return contained.rows(good)

    async def _index_or_leave(self, number: int) -> Cut | list[Block] | None:
        """Indexes a container; returns None if it is damaged and is to be left out."""
        # Empty containers wait for nothing: 10^6 of them would take one turn of the loop.
        await asyncio.sleep(0)
        passed = 0

        def count(need: Need) -> None:
            nonlocal passed
            self._read_bytes += need.stop - need.start
            if need.object is None and need.stop > passed:
                self._done_bytes += need.stop - passed
                passed = need.stop
            self._report()

        try:
            cut = await index_container(
                self._container(number),
                self._chosen,
                self._reader,
                ahead=self._budget.ahead,
                on_chunk=self._options.on_chunk,
                on_read=count,
                on_note=lambda note: self._add_note(note, number),
            )
            counted = self._count_object(number, cut, passed)
            self._report()
            return counted
        except ManifestError as error:
            self._leave(number, error)
            return None

    def _leave(self, number: int, error: ManifestError) -> None:
        """Leaves out a container that cannot be read; raises the error if it is of another object, or damage is one."""
        is_own = error.details.get("url") == self._survey.sources[number].record.url
        if self._options.on_damage is None or not ("reason" in error.details or is_own):
            raise error
        self._damages[number] = error
        self._done += 1

    def _add_note(self, note: Note, number: int) -> None:
        """Adds a note about a container to those that say the same, whose first example is kept."""
        url = self._survey.sources[number].record.url
        known = self.notes.setdefault(note.what, Note(note.what, 0, f"{note.example} of {url}"))
        self.notes[note.what] = msgspec.structs.replace(known, count=known.count + note.count)

    def _container(self, number: int) -> Container:
        """Returns a container as the indexer gets it: with its key below the url, and its log if there are logs."""
        source = self._survey.sources[number]
        logs = self._options.logs
        log = logs.open_log(source, self._chosen, self._survey.facts, self._chunk_bytes) if logs else None
        named = msgspec.structs.replace(source, key=source.record.url.removeprefix(self._listing.base))
        return Container(
            source=named,
            facts=self._survey.facts,
            format_name=self._chosen.name,
            chunk_bytes=self._chunk_bytes,
            log=log,
        )

    def _count_object(self, number: int, cut: Cut | list[Block] | Short | Partial, passed: int) -> Cut | list[Block]:
        """Counts the findings in a container, of which `passed` bytes are counted already; returns cut or blocks."""
        if isinstance(cut, Partial):
            self._left_out[number] = cut.left_out
            cut = cut.found
        if isinstance(cut, Short):
            self.longest = max(cut, self.longest or cut, key=lambda short: short.length)
            cut = []
        self._done += 1
        self._done_bytes += self._survey.sources[number].record.size - passed
        self._samples += len(cut.sample_start) if isinstance(cut, Cut) else sum(block.samples for block in cut)
        self.left_out += 0 if isinstance(cut, Cut) else sum(block.left_out for block in cut)
        return cut

    def _report(self) -> None:
        if self._options.on_progress:
            self._options.on_progress(
                BuildProgress(
                    objects_done=self._done,
                    objects=len(self._listing),
                    bytes_done=self._done_bytes,
                    total_bytes=self._total_bytes,
                    read_bytes=self._read_bytes,
                    samples=self._samples,
                )
            )
