"""Datasets of blocks: surveyed through an index file, cut into chunks, published as manifests of version 2.
The format is made up for the tests; the build is the real one, over a store in memory."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest

from streamer.batches.samples.stored import SampleLocation
from streamer.cli.show_command import describe_sample
from streamer.errors import ConfigError, ManifestError
from streamer.formats.base import Facts, FieldSpec, Format, Need, Source, Span, Survey
from streamer.indexing.build import BuildOptions, build
from streamer.indexing.rows import ManifestRows
from streamer.manifest.blocks import MOST_FETCH_BYTES, Block, cut_blocks, decode_hints
from streamer.manifest.model import Codec, ObjectRecord
from streamer.manifest.selection import Selection, Where
from streamer.manifest.transfer import export_files, install_files
from streamer.manifest.validation import verify

PREFIX = "s3://b/packed/"


class Packed(Format, frozen=True):
    """Stands for a format of blocks that an index and sidecars describe: ten samples each, which are never decoded."""

    name = "packed"
    revision = 3
    block_bytes: int = 1000

    def accepts(self, key):
        return key.endswith(".packed")

    def survey(self, accepted, others):
        index = others[f"{PREFIX}index.json"]
        head = yield Need(0, 10, index)
        rest = yield (Need(10, 20, index), Need(20, index.size, index))
        counts = json.loads(bytes(head) + b"".join(map(bytes, rest)))
        sources = [
            Source(record, str(counts[record.url]).encode(), others.get(f"{record.url}.idx"))
            for record in reversed(accepted)
            if record.url in counts
        ]
        return Survey(sources, Facts((FieldSpec("text", "txt"),), {"made": "by hand"}), read_bytes=100)

    def index(self, source, facts, start=0):
        assert facts.notes == {"made": "by hand"}
        names = b""
        if source.sidecar:
            names = bytes((yield Need(0, source.sidecar.size, source.sidecar)))
        yield Need(0, 4)
        for i in range(int(source.notes)):
            at = i * self.block_bytes
            yield Block(((at, at + 100), (at + 500, at + 600)), samples=10, record_bytes=300, hint=names)


def shards(count: int, blocks: int) -> dict[str, bytes]:
    names = [f"{PREFIX}{i}.packed" for i in range(count)]
    index = json.dumps(dict.fromkeys(names, blocks)).encode()
    objects = {name: bytes(blocks * 1000) for name in names}
    return {**objects, f"{PREFIX}index.json": index, f"{PREFIX}1.packed.idx": b"names", f"{PREFIX}more.packed": b"x"}


async def built(store, objects, root, packed=None, **options):
    source = store(objects)
    settings = BuildOptions(**{"chunk_bytes": 1024, **options})
    packed = packed or Packed()
    manifest = await build(
        PREFIX, root, lister=source, reader=source, choose_format=lambda keys: packed, options=settings
    )
    return manifest, source


async def test_survey_and_blocks_make_a_manifest(store, tmp_path):
    """A manifest of blocks has the survey's order of sources, chunks of whole blocks, hints, facts and options."""
    estimates = []
    manifest, source = await built(store, shards(3, 12), tmp_path, on_estimate=estimates.append)
    assert (manifest.samples, manifest.chunks, manifest.objects) == (360, 9, 3)
    assert manifest.recoded
    assert manifest.content.version == 2
    assert (manifest.content.revision, manifest.content.options) == (3, {})
    assert manifest.facts == Facts((FieldSpec("text", "txt"),), {"made": "by hand"})
    assert manifest.object(0).url == f"{PREFIX}2.packed"
    first, last = manifest.chunk(3), manifest.chunk(5)
    assert (first.samples, last.samples, first.codec) == (50, 20, Codec.RECORDS)
    assert [(e.start, e.stop) for e in first.extents][:3] == [(0, 100), (500, 600), (1000, 1100)]
    assert (first.fetch_bytes, first.local_bytes) == (1000, 5 * 300 + 51 * 4)
    assert [(h.fetch_bytes, h.samples, h.hint) for h in decode_hints(first.hint)] == [(200, 10, b"names")] * 5
    assert decode_hints(manifest.chunk(0).hint)[0].hint == b""
    assert (estimates[0].read_bytes, estimates[0].requests) == (100, 3)
    index_bytes = len(shards(3, 12)[f"{PREFIX}index.json"])
    assert sum(extent.stop - extent.start for extent in source.reads) == index_bytes + len(b"names") + 3 * 4


async def test_samples_have_a_chunk_but_no_place_in_it(store, tmp_path):
    """A sample of a block has a chunk but no offsets in it, and errors name the range of the chunk."""
    manifest, _ = await built(store, shards(1, 12), tmp_path)
    chunk, start, stop = manifest.locate(np.array([0, 50, 119]))
    assert (chunk.tolist(), start.tolist(), stop.tolist()) == ([0, 1, 2], [-1] * 3, [-1] * 3)
    extent = manifest.extent_of(50)
    assert (extent.object.url, extent.start, extent.stop) == (f"{PREFIX}0.packed", 5000, 9600)


async def test_what_the_records_follow_from_is_in_the_keys(store, tmp_path):
    """Another option, revision, hint or version gives another chunk key; a second build gives the same manifest."""
    objects = shards(2, 4)
    plain, _ = await built(store, objects, tmp_path / "0")
    assert (await built(store, objects, tmp_path / "1"))[0].digest == plain.digest

    class Newer(Packed, frozen=True):
        revision = 4

    others = [
        await built(store, {**objects, f"{PREFIX}0.packed": bytes(5000)}, tmp_path / "2"),
        await built(store, {**objects, f"{PREFIX}0.packed.idx": b"other"}, tmp_path / "3"),
        await built(store, objects, tmp_path / "4", Newer()),
        await built(store, objects, tmp_path / "5", Packed(block_bytes=999)),
    ]
    keys = {manifest.chunk_keys[-1].tobytes() for manifest, _ in others} | {plain.chunk_keys[-1].tobytes()}
    assert len(keys) == 5
    assert others[3][0].content.options == {"block_bytes": 999}


async def test_out_and_in_again(store, tmp_path):
    """An exported manifest of blocks is installed with the same digest and the same chunks, hints included."""
    manifest, _ = await built(store, shards(2, 12), tmp_path / "from")
    copy = install_files(export_files(manifest), tmp_path / "to")
    assert copy.digest == manifest.digest
    assert [copy.chunk(i) for i in range(copy.chunks)] == [manifest.chunk(i) for i in range(manifest.chunks)]


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (Block(((0, MOST_FETCH_BYTES + 1),), 1, 1), "a block of 268435457 bytes"),
        (Block(((0, 10),), 1, 2 << 30), "bytes of records"),
        (Block(((0, 10),), 1, 1, bytes(70_000)), "bytes of hint"),
    ],
)
async def test_a_block_that_is_too_large(store, tmp_path, block, reason):
    """A block with too many bytes, records or hints raises ManifestError that names the object and the way out."""

    class Large(Packed, frozen=True):
        def index(self, source, facts, start=0):
            yield block

    with pytest.raises(ManifestError, match=rf"s3://b/packed/0\.packed has .*{reason}.*smaller blocks"):
        await built(store, shards(1, 1), tmp_path, Large())


async def test_a_survey_that_names_other_objects(store, tmp_path):
    """A survey that names an unlisted object raises ManifestError: formats come from other packages, too."""

    class Wrong(Packed, frozen=True):
        def survey(self, accepted, others):
            yield from ()
            return Survey([Source(msgspec.structs.replace(accepted[0], url="file:///etc/passwd"))])

    with pytest.raises(ManifestError, match="each must be one of the 2"):
        await built(store, shards(1, 1), tmp_path, Wrong())


def test_blocks_are_cut_without_looking_ahead():
    """Chunks of blocks are as long as asked for or one block, and do not depend on the blocks that follow."""
    blocks = [Block(((0, size),), 1, 1) for size in (400, 600, 1, 2000, 1, 999, 1)]
    assert cut_blocks(blocks, 1000).tolist() == [0, 2, 3, 4, 6, 7]
    for count in range(1, len(blocks)):
        assert (
            cut_blocks(blocks, 1000).tolist()[: len(cut_blocks(blocks[:count], 1000)) - 1]
            == cut_blocks(blocks[:count], 1000).tolist()[:-1]
        )
    assert cut_blocks([], 1000).tolist() == [0]


async def test_blocks_and_samples_do_not_mix(store, tmp_path):
    """A dataset in which some objects have blocks and others samples raises ManifestError."""

    class Mixed(Packed, frozen=True):
        def index(self, source, facts, start=0):
            if source.record.url.endswith("0.packed"):
                yield Span(0, 10)
            else:
                yield Block(((0, 10),), 1, 1)

    with pytest.raises(ManifestError, match="name them as two datasets"):
        await built(store, shards(2, 1), tmp_path, Mixed())


class Joined(Packed, frozen=True):
    """A made-up format whose shards, but for the last, are decoded with the beginning of the next one."""

    def survey(self, accepted, others):
        yield from ()
        notes = [msgspec.json.encode(record) for record in accepted[1:]]
        return Survey([Source(record, note) for record, note in zip(accepted, [*notes, b""], strict=True)])

    def index(self, source, facts, start=0):
        if source.notes:
            following = msgspec.json.decode(source.notes, type=ObjectRecord)
            yield Block(((0, 100), (0, 50)), 10, 300, b"", (source.record, following))


async def test_blocks_of_several_objects(store, tmp_path, monkeypatch):
    """A block may have ranges of several objects, all of which its key depends on; each part has them once."""
    monkeypatch.setattr(ManifestRows.parts, "__defaults__", (10,))
    objects = {f"{PREFIX}{number}.packed": bytes(100 + number) for number in range(4)}
    manifest, _ = await built(store, objects, tmp_path / "0", Joined())
    verify(manifest)
    assert (manifest.objects, len(manifest.content.parts)) == (4, 3)
    for number in range(3):
        extents = manifest.chunk(number).extents
        places = [(extent.object.url.removeprefix(PREFIX), extent.start, extent.stop) for extent in extents]
        assert places == [(f"{number}.packed", 0, 100), (f"{number + 1}.packed", 0, 50)]
    after, _ = await built(store, {**objects, f"{PREFIX}3.packed": bytes(200)}, tmp_path / "1", Joined())
    assert [manifest.chunk(i).key == after.chunk(i).key for i in range(3)] == [True, True, False]


async def test_a_block_of_an_object_that_is_no_source(store, tmp_path):
    """A block with bytes of an object that is not a source raises ManifestError that names format and object."""

    class Wrong(Packed, frozen=True):
        def index(self, source, facts, start=0):
            record = msgspec.structs.replace(source.record, url="file:///etc/passwd")
            yield Block(((0, 100),), 10, 300, b"", (record,))

    with pytest.raises(ManifestError, match="'packed' has bytes of file:///etc/passwd, which is not a source"):
        await built(store, shards(1, 1), tmp_path, Wrong())


@pytest.mark.parametrize("sizes", [(None, 10), (1, None), (1, 10)])
async def test_sizes_of_recoded_samples_are_not_taken_for_0(store, tmp_path, sizes):
    """Conditions on sizes or names of recoded samples raise ConfigError: they would keep all samples, or none."""
    manifest, _ = await built(store, shards(1, 12), tmp_path)
    with pytest.raises(ConfigError, match=r"min_bytes= and max_bytes= .* 'packed'.*where=.*measure_lengths"):
        Selection.create(manifest, Where(sizes=sizes))
    with pytest.raises(ConfigError, match="select by indices, where= or fraction"):
        Selection.create(manifest, Where(keys=["*"]))


async def test_a_block_of_several_objects_is_shown_in_its_first(store, tmp_path):
    """A sample of a block of several objects is shown in the first one, with the samples that share its bytes."""

    class Paired(Packed, frozen=True):
        name = "paired"

        def index(self, source, facts, start=0):
            yield Need(0, 4)
            other = msgspec.structs.replace(source.record, url=f"{PREFIX}0.packed")
            yield Block(((0, 100), (8000, 8100)), 10, 300, objects=(source.record, other))

    manifest, _ = await built(store, shards(2, 12), tmp_path, Paired())
    place = SampleLocation(sample=1, start=30, stop=60, ordinal=1, chunk=0)
    line = describe_sample({"__key__": "1"}, place, manifest)[1]
    assert line == f"  in {PREFIX}1.packed, one of 10 samples in 100 bytes from 0 on, chunk 0"
