"""Runs a format's survey: which objects contain samples, and the facts about all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from pathlib import Path

import msgspec

from streamer.base.concurrency import map_concurrently
from streamer.errors import ManifestError
from streamer.indexing.listed_rows import ListedDataset, Listing
from streamer.manifest.beside import POINTER_ADVICE, POINTER_BYTES, is_pointer
from streamer.manifest.kept import KeptFiles
from streamer.manifest.model import Extent, ObjectRecord
from streamer.manifest.protocols import (
    Answer,
    BoundedReader,
    ContextSurveyor,
    Examine,
    Examined,
    Examiner,
    Need,
    RangeReader,
    Survey,
    SurveyContext,
    Surveying,
)
from streamer.manifest.table import Manifest


def refuse_pointers(reader: RangeReader) -> RangeReader:
    """Returns a reader that refuses pointers of Git LFS; it has recoders if the given one has."""
    return _CheckedExaminer(reader) if isinstance(reader, Examiner) else _CheckedReader(reader)


class _CheckedReader:
    """Reads ranges; raises ManifestError for an object that is a pointer of Git LFS."""

    def __init__(self, reader: RangeReader) -> None:
        self._reader = reader

    async def read(self, extent: Extent) -> bytes:
        """Returns exactly the bytes of `extent`."""
        content = await self._reader.read(extent)
        if extent.start == 0 and extent.object.size < POINTER_BYTES and is_pointer(content):
            record = extent.object
            text = f"{record.url} {POINTER_ADVICE}"
            raise ManifestError(text, url=record.url, size=record.size, reason=POINTER_ADVICE)
        return content

    def hold(self, ranges: Sequence[Extent]) -> AbstractAsyncContextManager[None]:
        """Reserves memory for ranges, if the given reader bounds it; see `BoundedReader`."""
        return self._reader.hold(ranges) if isinstance(self._reader, BoundedReader) else nullcontext()


class _CheckedExaminer(_CheckedReader):
    """Also lets a recoder count samples."""

    async def examine(self, asked: Examine) -> Examined:
        """Recodes an object as one block, and counts; raises ManifestError as `read`."""
        if asked.object.size < POINTER_BYTES:
            await self.read(Extent(asked.object, 0, asked.object.size))
        assert isinstance(self._reader, Examiner)
        return await self._reader.examine(asked)


_SUFFIX = ".survey"


class Surveyed(msgspec.Struct, frozen=True):
    """The objects to index, in the order of the samples; row i of the listing is source i of the survey.

    Attributes:
        damages: errors of objects that the survey could not read, and which are not among these.
    """

    listing: Listing
    survey: Survey
    damages: list[ManifestError]


async def survey_objects(
    listed: ListedDataset, reader: RangeReader, concurrency: int, *, skips: bool, memories: Sequence[bytes] = ()
) -> Surveyed:
    """Surveys the listed objects.

    Args:
        listed: The objects.
        reader: Reads what the survey needs of them.
        concurrency: Requests at once.
        skips: Whether an object that the survey cannot read is left out, as the first one that says which fields all
            have, and the others are surveyed without it.
        memories: What earlier surveys have left; see `SurveyContext`.

    Raises:
        ManifestError: the format's survey failed, or names an object twice or one that was not listed.
        StoreError: the reader failed.
    """
    reader = refuse_pointers(reader)
    listing = listed.listing
    # Threads look at all objects: 10^6 take seconds.
    accepted = await asyncio.to_thread(lambda: [listing.record(number) for number in range(len(listing))])
    damages: list[ManifestError] = []
    while True:
        try:
            found = await _survey_objects(
                listed=listed, accepted=accepted, reader=reader, concurrency=concurrency, memories=memories
            )
            break
        except ManifestError as error:
            damaged = error.details.get("url")
            kept = await asyncio.to_thread(lambda url, of: [one for one in of if one.url != url], damaged, accepted)
            if not skips or len(kept) == len(accepted):
                raise
            damages.append(error)
            if not kept:
                raise damages[0] from error
            accepted = kept
    return Surveyed(await asyncio.to_thread(_choose_sources, listed, found, len(accepted)), found, damages)


def _choose_sources(listed: ListedDataset, found: Survey, accepted: int) -> Listing:
    """Returns the listing of the objects that a survey names.

    Raises:
        ManifestError: it names one twice, or one that was not listed.
    """
    places = {listed.listing.record(place).url: place for place in range(len(listed.listing))}
    chosen = [places.get(source.record.url, -1) for source in found.sources]
    if -1 in chosen or len(set(chosen)) < len(chosen):
        raise ManifestError(
            f"the survey of format {listed.indexer.name!r} names {len(chosen)} objects; each must be one of the "
            f"{accepted} that it accepts, and named once",
            objects=accepted,
        )
    return listed.listing.only(chosen)


async def _survey_objects(
    listed: ListedDataset,
    accepted: Sequence[ObjectRecord],
    reader: RangeReader,
    concurrency: int,
    memories: Sequence[bytes],
) -> Survey:
    """Runs one survey of these objects."""
    indexer = listed.indexer
    if isinstance(indexer, ContextSurveyor):
        steps = indexer.survey_with(SurveyContext(listed.table, memories), accepted, listed.others)
    else:
        steps = indexer.survey(accepted, listed.others)
    found = await asyncio.to_thread(_advance, steps, None)
    while not isinstance(found, Survey):
        answer: Answer
        if isinstance(found, Examine):
            try:
                answer = await examine(found, reader)
            except ManifestError as error:
                # A survey may do without an object that cannot be decompressed.
                found = await asyncio.to_thread(_advance, steps, error)
                continue
        else:
            needs = found if isinstance(found, tuple) else (found,)
            async with reserve_needs(needs, reader):
                contents = tuple(await read_needs(needs, reader, concurrency))
                answer = contents if isinstance(found, tuple) else contents[0]
                # They are parsed while their memory is reserved.
                found = await asyncio.to_thread(_advance, steps, answer)
            continue
        found = await asyncio.to_thread(_advance, steps, answer)
    return found


def reserve_needs(needs: Sequence[Need], reader: RangeReader) -> AbstractAsyncContextManager[None]:
    """Reserves memory for ranges of named objects while they are read and parsed, if the reader bounds it."""
    if not isinstance(reader, BoundedReader):
        return nullcontext()
    return reader.hold([Extent(need.object, need.start, need.stop) for need in needs if need.object is not None])


async def read_needs(needs: tuple[Need, ...], reader: RangeReader, concurrency: int) -> list[memoryview]:
    """Reads ranges of named objects, many at once."""

    async def read(need: Need) -> memoryview:
        assert need.object is not None, "a need of several, or of a survey, names its object"
        return memoryview(await reader.read(Extent(need.object, need.start, need.stop)))

    return await map_concurrently(read, needs, concurrency)


async def examine(asked: Examine, reader: RangeReader) -> Examined:
    """Lets a recoder examine an object; raises ManifestError if the reader has none."""
    if not isinstance(reader, Examiner):
        raise ManifestError(f"{asked.object.url} can be indexed by an engine only: it has to be unpacked")
    return await reader.examine(asked)


def _advance(steps: Surveying, answer: Answer | ManifestError) -> Survey | Need | tuple[Need, ...] | Examine:
    try:
        return steps.throw(answer) if isinstance(answer, ManifestError) else steps.send(answer)
    except StopIteration as end:
        survey: Survey = end.value
        return survey


def keep_memory(manifest: Manifest, memory: bytes) -> None:
    """Writes the memory of a survey; raises ManifestError if it cannot be written."""
    path = _place(manifest)
    KeptFiles(path.parent).write(path.name, lambda made: made.write_bytes(memory))


def read_memories(manifests: Sequence[Manifest]) -> list[bytes]:
    """Returns what the surveys of these manifests have left; those that have left nothing are passed over."""
    found = []
    for manifest in manifests:
        # It may be removed with its manifest at any time.
        with suppress(OSError):
            found.append(_place(manifest).read_bytes())
    return found


def _place(manifest: Manifest) -> Path:
    return manifest.path.parent / f"{manifest.digest}{_SUFFIX}"
