"""Runs a format's survey, which says which objects contain samples, and facts about all of them.

Used by `indexing/build.py`; `indexing/container_rows.py` reads with its helpers. A survey is a generator of the format
that asks for ranges of objects and gets their bytes.
"""

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
    """Returns a reader that raises ManifestError if a read shows that an object is a pointer of Git LFS.

    A read shows it if the object is short (`POINTER_BYTES`), and the read begins at byte 0 and has the pointer's first
    words. Else the result reads what the given reader does, and bounds memory and examines objects if that one does.
    """
    return _CheckedExaminer(reader) if isinstance(reader, Examiner) else _CheckedReader(reader)


class _CheckedReader:
    """Reads ranges; raises ManifestError if a read shows that an object is a pointer of Git LFS."""

    def __init__(self, reader: RangeReader) -> None:
        self._reader = reader

    async def read(self, extent: Extent) -> bytes:
        """Returns exactly the bytes of `extent`; raises ManifestError for those of a pointer, or as the reader does."""
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
    """Does the same, and also lets a recoder examine objects."""

    async def examine(self, asked: Examine) -> Examined:
        """Recodes an object as one block; raises as `Examiner.examine`, and ManifestError for a pointer, too."""
        if asked.object.size < POINTER_BYTES:
            await self.read(Extent(asked.object, 0, asked.object.size))
        assert isinstance(self._reader, Examiner)
        return await self._reader.examine(asked)


# Ending of the file beside a manifest with what its survey leaves for the next one.
_SUFFIX = ".survey"


class Surveyed(msgspec.Struct, frozen=True):
    """The objects to index, in the order of the samples.

    Attributes:
        listing: the objects, of which number i is source i of the survey.
        survey: what the format found.
        damages: errors of objects that the survey could not read; these objects are left out of the listing.
    """

    listing: Listing
    survey: Survey
    damages: list[ManifestError]


async def survey_objects(
    listed: ListedDataset, reader: RangeReader, concurrency: int, *, skips: bool, memories: Sequence[bytes] = ()
) -> Surveyed:
    """Surveys the listed objects.

    Args:
        listed: the objects and their format.
        reader: reads what the survey needs of them.
        concurrency: requests at once.
        skips: whether an object that the survey cannot read is left out, and the others are surveyed without it. The
            object left out may be the one that says which fields all have.
        memories: what earlier surveys have left, see `SurveyContext`.

    Raises:
        ManifestError: the survey failed, leaves no object, or names an object twice or one that was not listed.
        StoreError: the reader failed.
        ConfigError: a library of the format is not installed.
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
    """Returns the listing of the objects that a survey names, in its order.

    Args:
        listed: all objects.
        found: result of the survey.
        accepted: number of objects that the survey was given, for the error.

    Raises:
        ManifestError: the survey names an object twice, or one that was not listed.
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
    """Runs the survey once over the accepted objects; its steps run in threads. Arguments as `survey_objects`."""
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
    """Returns a context in which memory for ranges of named objects is reserved, if the reader bounds its memory."""
    if not isinstance(reader, BoundedReader):
        return nullcontext()
    return reader.hold([Extent(need.object, need.start, need.stop) for need in needs if need.object is not None])


async def read_needs(needs: tuple[Need, ...], reader: RangeReader, concurrency: int) -> list[memoryview]:
    """Reads ranges of named objects, at most `concurrency` at once; returns their bytes, or raises as `reader` does."""

    async def read(need: Need) -> memoryview:
        assert need.object is not None, "a need of several, or of a survey, names its object"
        return memoryview(await reader.read(Extent(need.object, need.start, need.stop)))

    return await map_concurrently(read, needs, concurrency)


async def examine(asked: Examine, reader: RangeReader) -> Examined:
    """Lets a recoder examine an object.

    Raises:
        ManifestError: the reader has no recoders, or the object cannot be decoded.
        StoreError: the object cannot be read.
        ConfigError: the format, or a library of it, is not installed.
    """
    if not isinstance(reader, Examiner):
        raise ManifestError(f"{asked.object.url} can be indexed by an engine only: it has to be unpacked")
    return await reader.examine(asked)


def _advance(steps: Surveying, answer: Answer | ManifestError) -> Survey | Need | tuple[Need, ...] | Examine:
    """Gives a survey its answer, or raises the error in it; returns what it asks for next, or its result."""
    try:
        return steps.throw(answer) if isinstance(answer, ManifestError) else steps.send(answer)
    except StopIteration as end:
        survey: Survey = end.value
        return survey


def keep_memory(manifest: Manifest, memory: bytes) -> None:
    """Writes the memory of a survey beside its manifest; raises ManifestError if it cannot be written."""
    path = _place(manifest)
    KeptFiles(path.parent).write(path.name, lambda made: made.write_bytes(memory))


def read_memories(manifests: Sequence[Manifest]) -> list[bytes]:
    """Returns the memories that the surveys of these manifests have left; a manifest without one is passed over."""
    found = []
    for manifest in manifests:
        # It may be removed with its manifest at any time.
        with suppress(OSError):
            found.append(_place(manifest).read_bytes())
    return found


def _place(manifest: Manifest) -> Path:
    return manifest.path.parent / f"{manifest.digest}{_SUFFIX}"
