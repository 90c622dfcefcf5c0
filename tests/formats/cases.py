"""Small datasets that the libraries themselves have written, what their own readers say of them, and a store of them.

A case on the disk is a folder with the objects and `expected.json`: for each sample its fields as `summary` gives them,
and `__key__` where the format has keys. The scripts in `make/` have made them.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha1
from pathlib import Path

import msgspec

from streamer.decode.base import Draws
from streamer.decode.dispatch import SampleDecoder
from streamer.errors import ManifestError, RecodeError
from streamer.formats.base import (
    Answer,
    Block,
    Examine,
    Examined,
    Facts,
    Field,
    Format,
    Need,
    Opener,
    SampleName,
    Source,
    Span,
    Survey,
    SurveyContext,
)
from streamer.formats.chunkfile import RecordTable, encode_table
from streamer.formats.registry import find_format
from streamer.indexing.build import BuildOptions, build
from streamer.manifest.model import Codec, Extent, ObjectRecord
from streamer.manifest.protocols import LeftOut, Note, Short
from streamer.manifest.table import Manifest
from streamer.manifest.validation import check_keys
from tests.formats.summary import EXPECTED, KEY, summary

DATA = Path(__file__).parent / "data"
URL = "s3://bucket/data/"

Sample = Mapping[str, object]


@dataclass(frozen=True)
class Case:
    """A dataset, and what is expected of it.

    Attributes:
        name: of the variant.
        format: with its options.
        objects: contents by name below the dataset's url.
        samples: expected: `summary` of each field by its name, and `__key__` as it is where the format has keys.
        raw: fields that are compared as they are stored, not decoded (pictures).
        copied: fields that are made anew, not views of the sample's bytes.
    """

    name: str
    format: Format
    objects: Mapping[str, bytes]
    samples: Sequence[Sample]
    raw: frozenset[str] = frozenset()
    copied: frozenset[str] = frozenset()

    def write(self, folder: Path) -> Path:
        """Writes the objects as files; returns the folder."""
        for name, content in self.objects.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return folder

    def decoder(self) -> SampleDecoder:
        """Decodes the fields as a dataset does, but for the raw ones."""
        return SampleDecoder(dict.fromkeys(self.raw) if self.raw else "auto")


def read_case(
    chosen: Format, folder: str, *, raw: Sequence[str] = (), copied: Sequence[str] = (), name: str = ""
) -> Case:
    """Returns the case in a folder of `data/`."""
    root = DATA / folder
    files = sorted(path for path in root.rglob("*") if path.is_file())
    objects = {str(path.relative_to(root)): path.read_bytes() for path in files if path.name != EXPECTED}
    samples = json.loads((root / EXPECTED).read_text())
    return Case(name or folder, chosen, objects, samples, frozenset(raw), frozenset(copied))


# ---------------------------------------------------------------- a format at work, without a builder


@dataclass
class Found:
    """What a format has found, and what it has asked for.

    Attributes:
        survey: None for whole objects.
        items: of each source, its spans or blocks.
        needs: of each source, each ask of its index as a tuple; a need has the object that it was answered from, but
            for those of a walk through the source.
        survey_needs: likewise, of the survey.
        walked: of each source, what its index has asked for without naming an object: windows that move forward.
    """

    survey: Survey | None
    items: list[tuple[Source, list[Span | Block]]] = field(default_factory=list)
    needs: dict[str, list[tuple[Need, ...]]] = field(default_factory=dict)
    survey_needs: list[tuple[Need, ...]] = field(default_factory=list)
    walked: dict[str, list[Need]] = field(default_factory=dict)


def records_of(objects: Mapping[str, bytes]) -> list[ObjectRecord]:
    """Returns the listing of these objects."""
    return [
        ObjectRecord(URL + name, len(content), f"etag:{sha1(content).hexdigest()}")
        for name, content in sorted(objects.items())
    ]


def find(chosen: Format, objects: Mapping[str, bytes], chunk_bytes: int = 8 << 20) -> Found:
    """Surveys and indexes objects in memory."""
    listing = records_of(objects)
    accepted = [record for record in listing if chosen.accepts(record.url.removeprefix(URL))]
    found = Found(None)
    if chosen.whole_objects:
        sources: Sequence[Source] = [Source(record) for record in accepted]
    else:
        others = {record.url: record for record in listing if record not in accepted}
        survey = chosen.survey_with(SurveyContext(URL), accepted, others)
        found.survey = run(survey, objects, None, found.survey_needs, _refuse)
        sources = found.survey.sources
        if found.survey.left_out:
            # As a build without `Index(damaged="skip")`.
            raise ManifestError(found.survey.left_out[0].what)
    for surveyed in sources:
        key = surveyed.record.url.removeprefix(URL)
        source = msgspec.structs.replace(surveyed, chunk_bytes=chunk_bytes, key=key)
        items: list[Span | Block] = []
        asked = found.needs.setdefault(source.record.url, [])
        walked = found.walked.setdefault(source.record.url, [])
        run(chosen.index(source, facts_of(found)), objects, source.record, asked, items.append, walked.append)
        found.items.append((source, items))
    return found


def _refuse(item: object) -> None:
    raise AssertionError(f"a survey has yielded {item!r}")


def facts_of(found: Found) -> Facts:
    """Returns the facts of the survey, or none."""
    return found.survey.facts if found.survey else Facts()


def run(
    steps: Generator[object, Answer, Survey | None],
    objects: Mapping[str, bytes],
    target: ObjectRecord | None,
    asked: list[tuple[Need, ...]],
    take: Callable[[Span | Block], object],
    walk: Callable[[Need], object] = lambda need: None,
) -> Survey | None:
    """Answers the needs of a survey or an index from memory; returns what it returns."""
    answer: Answer = None
    while True:
        try:
            item = steps.send(answer)
        except StopIteration as end:
            return end.value
        answer = None
        if isinstance(item, Need | tuple):
            if isinstance(item, Need) and item.object is None:
                walk(item)
            needs = item if isinstance(item, tuple) else (item,)
            named = tuple(Need(need.start, need.stop, need.object or target) for need in needs)
            # One without an object goes on in a walk through the indexed one.
            asked.append(needs if item is needs[0] and needs[0].object is None else named)
            contents = tuple(_bytes_of(need, objects) for need in named)
            answer = contents if isinstance(item, tuple) else contents[0]
        elif isinstance(item, Examine):
            asked.append((Need(0, item.object.size, item.object),))
            answer = examined(item, objects[item.object.url.removeprefix(URL)])
        elif isinstance(item, LeftOut):
            raise ManifestError(item.what)
        elif not isinstance(item, Short):
            take(item)


def examined(asked: Examine, content: bytes) -> Examined:
    """Returns what a recoder says of an object, here in this process and not in the engine's."""
    recoder = find_format(asked.format, asked.options).recoder(asked.facts)
    try:
        made = recoder.recode(memoryview(content), -1, asked.hint)
    except RecodeError as error:
        raise ManifestError(error.message) from error
    records = b"".join(bytes(memoryview(part).cast("B")) for part in made.parts) if asked.reads else b""
    return Examined(len(made.lengths), int(made.lengths.sum()), records)


def _bytes_of(need: Need, objects: Mapping[str, bytes]) -> memoryview:
    assert need.object is not None, "a need of a survey names its object"
    content = memoryview(objects[need.object.url.removeprefix(URL)])
    assert 0 <= need.start < need.stop <= len(content), f"{need} is not inside of {len(content)} bytes"
    return content[need.start : need.stop]


def contents_of(chosen: Format, found: Found, objects: Mapping[str, bytes]) -> list[tuple[bytes, SampleName]]:
    """Returns the bytes of each sample, as the opener gets them; those of blocks are recoded."""
    contents: list[tuple[bytes, SampleName]] = []
    for source, items in found.items:
        key = source.record.url.removeprefix(URL)
        name = SampleName(key if chosen.whole_objects else "")
        whole = objects[key]
        for item in items:
            if isinstance(item, Span):
                contents.append((whole[item.start : item.stop], name))
            elif not isinstance(item, Note):
                content = block_bytes(item, whole, objects)
                contents += [(record, name) for record in recode(chosen, found, item, content)]
    return contents


def block_bytes(block: Block, whole: bytes, objects: Mapping[str, bytes] | None = None) -> bytes:
    """Returns what the recoder gets: bytes of the object that was indexed, or of others, too."""
    owners = [(objects or {})[owner.url.removeprefix(URL)] for owner in block.objects] or [whole] * len(block.ranges)
    return b"".join(owner[start:stop] for owner, (start, stop) in zip(owners, block.ranges, strict=True))


def recode(chosen: Format, found: Found, block: Block, content: bytes) -> list[bytes]:
    """Returns the records of a block."""
    made = chosen.recoder(facts_of(found)).recode(memoryview(content), block.samples, block.hint)
    heads, shared = (
        b"".join(bytes(memoryview(part).cast("B")) for part in parts) for parts in (made.parts, made.shared_parts)
    )
    assert (made.lengths.sum(), made.part_lengths.sum()) == (len(heads), len(shared)), "lengths are those of the parts"
    assert made.part_ranges.shape[1] == block.part_ranges, "the index says how many ranges of parts a sample has"
    content = memoryview(shared + heads + encode_table(made.lengths, made.part_lengths, made.part_ranges))
    codec = Codec.SHARED if block.part_ranges else Codec.RECORDS
    table = RecordTable.decode(content, len(made.lengths), codec, len(content))
    return [bytes(table.record(sample, content)) for sample in range(table.samples)]


def samples_in(
    chosen: Format, objects: Mapping[str, bytes], chunk_bytes: int = 8 << 20, draws: Draws | None = None
) -> list[dict[str, object]]:
    """Returns the samples of objects, decoded."""
    found = find(chosen, objects, chunk_bytes)
    opener, decode = chosen.opener(facts_of(found)), SampleDecoder()
    contents = [opener.open(memoryview(record), name) for record, name in contents_of(chosen, found, objects)]
    return [decode(key, fields, draws=draws) for key, fields in contents]


def opened(case: Case, opener: Opener, content: memoryview, name: SampleName) -> Sample:
    """Returns a sample as `expected.json` has it."""
    key, fields = opener.open(content, name)
    return told(case, key, fields)


def told(case: Case, key: str | None, fields: Sequence[Field]) -> Sample:
    """Returns a sample as `expected.json` has it, of its fields."""
    values = case.decoder()(key or "", fields)
    values.pop(KEY)
    told = {field_name: summary(value) for field_name, value in values.items()}
    # As it comes out of a JSON file.
    return json.loads(json.dumps(told if key is None else {KEY: key, **told}))


# ---------------------------------------------------------------- the builder


class MemoryStore:
    """Stands for an object store: lists and reads objects in memory, and keeps what was read in `reads`.

    Like a store it lists in pages and answers in any order (with a seed). Unlike one, it never fails, and the versions
    of its objects follow from their contents.

    Args:
        objects: by name below `URL`.
        seed: of the order of the listing and of the answers; None: sorted, and at once.
    """

    def __init__(self, objects: Mapping[str, bytes], seed: int | None = None) -> None:
        self._objects, self._drawn = objects, random.Random(seed) if seed is not None else None
        self.reads: list[Extent] = []

    async def list(self, url: str) -> AsyncIterator[Sequence[ObjectRecord]]:
        found = records_of(self._objects)
        if self._drawn:
            self._drawn.shuffle(found)
        for start in range(0, len(found), 3):
            yield found[start : start + 3]

    async def read(self, extent: Extent) -> bytes:
        self.reads.append(extent)
        for _ in range(self._drawn.randrange(20) if self._drawn else 0):
            await asyncio.sleep(0)
        return self._objects[extent.object.url.removeprefix(URL)][extent.start : extent.stop]

    async def examine(self, asked: Examine) -> Examined:
        """Reads the object and examines it in this process, where an engine has a pool of recoders."""
        return examined(asked, await self.read(Extent(asked.object, 0, asked.object.size)))


async def built(chosen: Format, store: MemoryStore, root: Path, chunk_bytes: int = 4096, **options: object) -> Manifest:
    """Builds the manifest of what a store has, and checks that its keys are those that every installer computes."""
    manifest = await build(
        URL,
        root,
        lister=store,
        reader=store,
        choose_format=lambda keys: chosen,
        options=BuildOptions(chunk_bytes=chunk_bytes, **options),
    )
    check_keys(manifest)
    return manifest
