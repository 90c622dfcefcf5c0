"""What every format must do, whatever its files look like.

    class TestTFRecord(FormatContract):
        @classmethod
        def cases(cls):
            return [read_case(TFRecord(), "tfrecord/examples", raw=["image"])]

Every test runs for every case; the end-to-end ones for the first case, and for the others in `make test-formats`.
The one that resumes runs there only.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import pickle
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import numpy as np
import pytest

from streamer import Order, StreamingDataLoader, StreamingDataset
from streamer.cli.main import main
from streamer.errors import ConfigError, DecodeError, ManifestError, ObjectChangedError, RecodeError
from streamer.formats import AUTO, reading
from streamer.formats.base import Block, Format, Span
from streamer.formats.registry import find_codecs, find_format
from streamer.formats.table.records import find_dtype
from streamer.manifest.blocks import decode_hints
from streamer.manifest.table import Manifest
from streamer.manifest.validation import verify
from tests.formats.cases import (
    URL,
    Case,
    Found,
    MemoryStore,
    block_bytes,
    built,
    contents_of,
    facts_of,
    find,
    opened,
    recode,
    run,
    samples_in,
)
from tests.formats.mutations import mutated
from tests.formats.summary import KEY, summary

# What a parser may raise for bytes that are not its format's.
REFUSALS = (ManifestError, DecodeError, RecodeError)
# Mutations of each file: in `make test`, and in `make test-formats`.
FEW, MANY = 5, 2000
MAX_BYTES = 64 << 20
# For two and for three ranks.
GLOBAL_BATCH = 6
MOST_SECONDS = 1.0
Test = TypeVar("Test", bound=Callable[..., object])


@functools.cache
def _cases_of(contract: type[FormatContract]) -> list[Case]:
    """Returns the cases, read once for all tests of a contract, not for each of the twenty."""
    return contract.cases()


def only_for(has: Callable[[Case], object]) -> Callable[[Test], Test]:
    """Makes a test one of the cases that have what it is about; a format without such a case has no such test."""

    def mark(test: Test) -> Test:
        test.only_for = has  # type: ignore[attr-defined]
        return test

    return mark


def find_cases(contract: type[FormatContract], test: object) -> list[Case]:
    """Returns the cases of a format that a test of the contract is about."""
    has = getattr(test, "only_for", None)
    return [case for case in _cases_of(contract) if has is None or has(case)]


def _overrides(name: str) -> Callable[[Case], bool]:
    """Returns what tells whether the format of a case has a method of its own, not the default."""
    return lambda case: getattr(type(case.format), name) is not getattr(Format, name)


class FormatContract:
    """Checks what each format must do; a format's test class inherits it and gives `cases`."""

    @classmethod
    def cases(cls) -> list[Case]:
        """Returns the datasets; the first one is also read end to end in `make test`."""
        raise NotImplementedError

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Makes one test for each case."""
        if "case" in metafunc.fixturenames:
            # Half a second each.
            rest = [pytest.mark.formats] if "job" in metafunc.fixturenames else []
            cases = find_cases(type(self), metafunc.function)
            marked = [pytest.param(case, id=case.name, marks=rest if i else []) for i, case in enumerate(cases)]
            metafunc.parametrize("case", marked)

    # ------------------------------------------------------------ index

    def test_asks_inside_of_the_objects_and_forward(self, case: Case):
        """An index reads forward, no byte twice, and at most what its survey estimated; samples do not overlap."""
        found = find(case.format, case.objects)
        for source, items in found.items:
            last = 0
            for need in found.walked[source.record.url]:
                assert need.start >= last, "forward"
                last = need.stop
            _check_order(items, source.record.size)
        estimate = found.survey.read_bytes if found.survey else 0
        if estimate is not None:
            assert sum(n.stop - n.start for asks in found.needs.values() for ask in asks for n in ask) <= estimate

    def test_samples_are_the_libraries(self, case: Case, unpickling_fails: None):
        """Number, order, keys and every field of every sample are what the library's own reader says."""
        assert samples_of(case) == list(case.samples)

    @pytest.mark.parametrize("read_bytes", [1, 512])
    def test_windows_of_any_size(self, case: Case, read_bytes: int, monkeypatch: pytest.MonkeyPatch):
        """The index of a format does not depend on how much is read at once."""
        whole = find(case.format, case.objects)
        small = read_bytes if max(map(len, case.objects.values())) < 50_000 else max(read_bytes, 64)
        for name in ("READ_BYTES", "PROBE_BYTES"):
            monkeypatch.setattr(reading, name, small)
        found = find(case.format, case.objects)
        assert (found.survey, found.items) == (whole.survey, whole.items)

    def test_goes_on_at_any_sample(self, case: Case):
        """An index that was stopped goes on at any sample that it had found, with the same rest."""
        found = find(case.format, case.objects)
        for source, items in found.items:
            for place in sorted({0, 1, len(items) // 2, len(items) - 1} & set(range(len(items)))):
                if isinstance(items[place], Block):
                    continue
                rest: list[Span | Block] = []
                steps = case.format.index(source, facts_of(found), items[place].start)
                run(steps, case.objects, source.record, [], rest.append)
                assert rest == items[place:]

    async def test_digest_depends_on_the_objects_alone(self, case: Case, tmp_path: Path):
        """A manifest's digest does not depend on orders of listing and answers, concurrency or known manifests."""
        first = await built(case.format, MemoryStore(case.objects), tmp_path / "0")
        verify(first)
        for seed, concurrency in ((None, 1), (1, 3)):
            root = tmp_path / f"{seed} {concurrency}"
            again = await built(case.format, MemoryStore(case.objects, seed), root, concurrency=concurrency)
            assert again.digest == first.digest
        known = await built(case.format, MemoryStore(case.objects), tmp_path / "known", known=[first])
        assert known.digest == first.digest
        assert first.samples == len(case.samples)

    @pytest.mark.parametrize("chunk_bytes", [4 << 10, 8 << 20])
    async def test_chunks(self, case: Case, chunk_bytes: int, tmp_path: Path):
        """Chunks fetch at most twice `chunk_bytes`, unless they are one sample or block, and have all samples."""
        manifest = await built(case.format, MemoryStore(case.objects), tmp_path, chunk_bytes)
        verify(manifest)
        assert manifest.samples == len(case.samples)
        for number in range(manifest.chunks):
            chunk = manifest.chunk(number)
            assert chunk.fetch_bytes <= 2 * chunk_bytes or chunk.samples == 1 or _blocks_of(chunk.hint) == 1

    async def test_keys_follow_from_the_objects(self, case: Case, tmp_path: Path):
        """Another version of an object gives other keys to its chunks, and to no others."""
        before = await built(case.format, MemoryStore(case.objects), tmp_path / "a")
        changed = max(name for name in case.objects if case.format.accepts(name))
        store = _Touched(case.objects, changed)
        after = await built(case.format, store, tmp_path / "b")
        assert {*_keys(before, changed)}.isdisjoint(_keys(after, changed))
        assert set(_keys(before)) - set(_keys(before, changed)) == set(_keys(after)) - set(_keys(after, changed))

    # ------------------------------------------------------------ open, recode

    def test_opens_from_the_bytes_alone(self, case: Case):
        """A sample opens equally from read-only and writable bytes, again too; its plain fields are views of them."""
        found = find(case.format, case.objects)
        opener = case.format.opener(facts_of(found))
        for content, name in contents_of(case.format, found, case.objects):
            first = opened(case, opener, memoryview(content), name)
            assert opened(case, opener, memoryview(content), name) == first
            own = memoryview(bytearray(content))
            assert opened(case, opener, own, name) == first
            for field in opener.open(own, name)[1]:
                assert isinstance(field.content, memoryview)
                assert field.name in case.copied or _is_inside(field.content, own), f"{field.name} is a copy"

    @only_for(lambda case: _overrides("recoder")(case) and _blocks_in(case))
    def test_recodes_in_one_way(self, case: Case):
        """Recoding a block twice gives the same bytes; a damaged block is refused, or has as many records."""
        found = find(case.format, case.objects)
        drawn = random.Random(1)
        for source, items in found.items:
            whole = case.objects[source.record.url.removeprefix(URL)]
            for block in [item for item in items if isinstance(item, Block)][:3]:
                content = block_bytes(block, whole, case.objects)
                records = recode(case.format, found, block, content)
                assert recode(case.format, found, block, content) == records
                assert len(records) == block.samples
                flipped = bytearray(content)
                flipped[drawn.randrange(len(content))] ^= 0x10
                for damaged in (content[:-1], content + b"\0", b"", bytes(flipped)):
                    with contextlib.suppress(RecodeError):
                        assert len(recode(case.format, found, block, damaged)) == block.samples

    # ------------------------------------------------------------ bad inputs

    def test_damaged_files(self, case: Case, unpickling_fails: None):
        """Damaged files are read or refused with a typed error, each within a second of CPU."""
        _mutate(case, FEW)

    @pytest.mark.formats
    @pytest.mark.timeout(1800)
    def test_many_damaged_files(self, case: Case, unpickling_fails: None):
        """Thousands of damaged versions of each file are read or refused, within limits of time and memory."""
        samples_of(case)  # imports what it needs
        more = more_memory()
        _mutate(case, MANY)
        assert more() < MAX_BYTES + 8 * sum(map(len, case.objects.values()))

    def test_objects_of_no_bytes(self, case: Case):
        """An object of no bytes is a sample of no bytes if each is one; else it has none, or is a ManifestError."""
        for name in (name for name in case.objects if case.format.accepts(name)):
            try:
                found = find(case.format, {**case.objects, name: b""})
            except ManifestError:
                continue
            of_name = [items for source, items in found.items if source.record.url == URL + name]
            assert of_name in ([], [[Span(0, 0)]] if case.format.whole_objects else [[]])

    # ------------------------------------------------------------ the object itself

    def test_is_its_options(self, case: Case):
        """A format is made again from its name and its options as JSON, and pickles as an equal."""
        again = find_format(case.format.name, json.loads(json.dumps(case.format.options)))
        assert again.options == case.format.options
        assert pickle.loads(pickle.dumps(case.format)) == case.format
        assert hash(case.format) == hash(pickle.loads(pickle.dumps(case.format)))

    # ------------------------------------------------------------ what a format can do besides

    @only_for(lambda case: _overrides("narrow")(case) and len(case.samples[0].keys() - {KEY}) > 1)
    def test_narrow_reads_the_same_values_and_less(self, case: Case):
        """A dataset narrowed to one field or two has their values in order, and fetches fewer bytes."""
        found = find(case.format, case.objects)
        names = [spec.name for spec in facts_of(found).fields]
        whole = samples_of(case)
        compared = 0
        for some in [[name] for name in names] + [names[:2]]:
            narrow = case.format.narrow(facts_of(found), some) if 0 < len(some) < len(names) else None
            if narrow is None:
                continue
            assert find_format(narrow.name, narrow.options) == narrow
            part = replace(case, format=narrow)
            try:
                less = find(narrow, case.objects)
            except ManifestError:
                # These fields alone are no dataset; they are read with the others then.
                continue
            assert set(some) <= {spec.name for spec in facts_of(less).fields}
            compared += 1
            assert _fetched_bytes(less) < _fetched_bytes(found) or not len(whole)
            assert [[sample[name] for name in some] for sample in samples_of(part)] == [
                [sample[name] for name in some] for sample in whole
            ]
        assert compared

    def test_numbered_keys(self, case: Case):
        """Samples have no key in their bytes exactly where the format says so, if their fields are known."""
        found = find(case.format, case.objects)
        opener = case.format.opener(facts_of(found))
        contents = contents_of(case.format, found, case.objects)
        keys = [opener.open(memoryview(content), name)[0] for content, name in contents]
        fields = {spec.name for spec in facts_of(found).fields}
        if case.format.numbered_keys and KEY not in fields:
            assert set(keys) <= {None}
        elif fields:
            assert None not in keys or KEY in fields

    @only_for(lambda case: case.format.part_mark)
    def test_keys_of_parts_begin_with_their_file(self, case: Case):
        """The key of a part of a file is the file's key before the format's mark; each sample has its own."""
        found = find(case.format, case.objects)
        opener = case.format.opener(facts_of(found))
        contents = contents_of(case.format, found, case.objects)
        keys = [opener.open(memoryview(content), name)[0] for content, name in contents]
        assert {str(key).rpartition(case.format.part_mark)[0] for key in keys} <= case.objects.keys()
        assert len(set(keys)) == len(case.samples)

    @only_for(lambda case: case.format.recuts)
    def test_recuts(self, case: Case):
        """An index for smaller chunks finds the same samples in as many blocks or more, and reads as much at most."""
        coarse, fine = (find(case.format, case.objects, chunk_bytes) for chunk_bytes in (8 << 20, 4 << 10))
        first, other = ([item for _, items in found.items for item in items] for found in (coarse, fine))
        assert all(isinstance(item, Block) for item in first)
        assert sum(block.samples for block in first) == sum(block.samples for block in other) == len(case.samples)
        assert len(first) <= len(other)
        size = sum(map(len, case.objects.values()))
        assert _read_bytes(fine) <= max(_read_bytes(coarse), size)

    @only_for(_overrides("find_codecs"))
    async def test_codecs(self, case: Case, tmp_path: Path):
        """The codecs that a format names for its dataset are FFmpeg's names of those in its files, but for PCM."""
        av = pytest.importorskip("av")
        named = find_codecs(await built(case.format, MemoryStore(case.objects), tmp_path))
        assert {av.Codec(name, "r").id for name in named} == self.codecs_in(case, av)

    def codecs_in(self, case: Case, av: ModuleType) -> set[int]:
        """Returns FFmpeg's numbers of the codecs in the media files of a case: of the videos, if there are any."""
        found: set[int] = set()
        for name, content in case.objects.items():
            if Path(name).suffix not in {".jsonl", ".json", ".parquet"}:
                with av.open(io.BytesIO(content)) as media:
                    streams = media.streams.video or media.streams.audio
                    found |= {one.codec.id for one in streams if not one.codec.name.startswith("pcm_")}
        return found

    @only_for(lambda case: _overrides("find_token_bytes")(case) or _overrides("find_sample_bytes")(case))
    async def test_bytes_of_tokens_and_samples(self, case: Case, tmp_path: Path):
        """A sample of tokens is a multiple of the token's bytes; the bytes of samples are known of all or of none."""
        manifest = await built(case.format, MemoryStore(case.objects), tmp_path)
        token_bytes = case.format.find_token_bytes(manifest.facts)
        if token_bytes:
            found = find(case.format, case.objects)
            lengths = [len(content) for content, _ in contents_of(case.format, found, case.objects)]
            [field] = manifest.facts.fields
            assert np.dtype(field.kind.partition("[")[0]).itemsize == token_bytes
            assert all(length % token_bytes == 0 for length in lengths)
        sizes = case.format.find_sample_bytes(manifest)
        if sizes is not None:
            assert manifest.recoded
            assert sizes.shape == (manifest.samples,)
            assert (sizes > 0).all()

    @only_for(_overrides("find_decode_cost"))
    async def test_decode_cost(self, case: Case, tmp_path: Path):
        """The cost of decoding is known of all samples and of their mean, and has a text."""
        manifest = await built(case.format, MemoryStore(case.objects), tmp_path)
        mean = case.format.find_decode_cost(manifest)
        each = [case.format.find_decode_cost(manifest, ordinal) for ordinal in range(manifest.samples)]
        assert mean is not None
        for cost in (mean, *each):
            assert cost is not None
            assert cost.work > 0
            assert str(cost)
            assert isinstance(cost.cheaper + cost.advice, str)

    @only_for(_overrides("find_packer"))
    async def test_packer(self, case: Case, tmp_path: Path):
        """A format's packer can be pickled, and gives names and values, or leaves a field to its kind."""
        manifest = await built(case.format, MemoryStore(case.objects), tmp_path)
        packer = pickle.loads(pickle.dumps(case.format.find_packer(manifest)))
        assert packer is not None
        found = find(case.format, case.objects)
        opener = case.format.opener(facts_of(found))
        for content, name in contents_of(case.format, found, case.objects)[:3]:
            key, fields = opener.open(memoryview(content), name)
            packed = [packer(field, key or "") for field in fields]
            assert all(isinstance(pair[0], str) for values in packed if values is not None for pair in values)

    def test_request(self, case: Case):
        """A format is requested by its name or as "auto", and does not accept its file of annotations as a sample."""
        assert case.format.requested_name in (case.format.name, AUTO)
        assert case.format.chosen_extensions is None or case.format.whole_objects
        if case.format.metadata_file:
            assert case.format.whole_objects
            assert not case.format.accepts(case.format.metadata_file)

    # ------------------------------------------------------------ end to end

    def test_epochs_and_single_samples(self, case: Case, job: Job):
        """Two epochs, `dataset[i]` and `streamer show` through an engine's socket give the expected samples."""
        dataset = job.dataset(case)
        for _ in range(2):
            assert _sorted(_told(dict(sample)) for sample in dataset) == job.expected
        for index in {0, len(case.samples) // 2, len(case.samples) - 1}:
            assert _told(dataset[index]) in job.expected
        shown = job.show(case)
        assert all(name in shown for name in case.samples[0] if name != KEY), shown

    @only_for(lambda case: _find_number(case) is not None)
    def test_conditions_need_no_index(self, case: Case, job: Job):
        """`where=` takes a field that a format reads alone without an index of columns."""
        name = _find_number(case)
        values = [sample[name] for sample in samples_in(case.format, case.objects)]
        wanted = next(value for value in values if value is not None)
        part = job.dataset(case).select(where=f"{name} == {wanted!r}")
        assert part.samples == values.count(wanted)

    @pytest.mark.formats
    def test_resumes_on_another_number_of_ranks(self, case: Case, job: Job):
        """Two ranks stop in mid-epoch, and three go on from their state: each sample comes once."""
        assert len(case.samples) > GLOBAL_BATCH, "a case has samples for more than one batch"
        seen: list[object] = []
        for rank in range(2):
            with job.loader(case, rank, 2) as loader:
                steps = iter(loader)
                for _ in range(max(1, len(loader) // 2)):
                    seen += _new(next(steps), loader)
                state = loader.state_dict()
        for rank in range(3):
            with job.loader(case, rank, 3) as loader:
                loader.load_state_dict(state)
                for batch in loader:
                    seen += _new(batch, loader)
        assert _sorted(map(_told, seen)) == job.expected

    @pytest.mark.slow
    def test_a_changed_object_is_an_error(self, case: Case, job: Job):
        """An object that changed after it was indexed raises ObjectChangedError."""
        manifest = job.manifest(case)
        for name in case.objects:
            if case.format.accepts(name):
                path = job.folder / name
                path.write_bytes(path.read_bytes() + b"\0")
        with job.loader(case, 0, 1, manifest=manifest) as loader, pytest.raises(ObjectChangedError):
            list(loader)


def _blocks_in(case: Case) -> list[Block]:
    """Returns the blocks that an index of a case finds; there are none if its samples are read as they are stored."""
    return [item for _, items in find(case.format, case.objects).items for item in items if isinstance(item, Block)]


def _find_number(case: Case) -> str | None:
    """Returns the name of a field of integers that the format of a case reads alone, or None if there is none."""
    if not _overrides("narrow")(case):
        return None
    facts = facts_of(find(case.format, case.objects))
    for spec in facts.fields:
        dtype = find_dtype(spec.kind)
        is_number = dtype is not None and not dtype.shape and dtype.kind in "iu" and spec.name.isidentifier()
        if is_number and case.format.narrow(facts, [spec.name]) is not None:
            return spec.name
    return None


def _fetched_bytes(found: Found) -> int:
    """Returns the bytes that are fetched for the samples of an index."""
    items = [item for _, items in found.items for item in items]
    return sum(item.fetch_bytes if isinstance(item, Block) else item.stop - item.start for item in items)


def _read_bytes(found: Found) -> int:
    """Returns the bytes that an index reads."""
    return sum(need.stop - need.start for asks in found.needs.values() for ask in asks for need in ask)


class Job:
    """Reads the files of a case through an engine."""

    def __init__(self, root: Path, case: Case, out: Callable[[], str]) -> None:
        self.folder = case.write(root / "data")
        self._root, self._out = root, out
        self._made: list[StreamingDataset] = []
        numbered = ({KEY: str(number), **sample} for number, sample in enumerate(case.samples))
        self.expected = _sorted(numbered)

    def dataset(self, case: Case, **options: object) -> StreamingDataset:
        """Opens the dataset, which is closed at the end."""
        rule = dict.fromkeys(case.raw) if case.raw else "auto"
        made = StreamingDataset(self.folder, format=case.format, decode=rule, cache_bytes="1GB", **options)
        self._made.append(made)
        return made

    def loader(self, case: Case, rank: int, ranks: int, **options: object) -> StreamingDataLoader:
        """Returns the loader of one rank."""
        filled = Order(last_batch="fill")
        dataset = self.dataset(case, rank=rank, world_size=ranks, order=filled, **options)
        return StreamingDataLoader(dataset, GLOBAL_BATCH // ranks, 0, collate_fn=_kept, report_every=None)

    def manifest(self, case: Case) -> Path:
        """Builds a manifest with another cache, and returns its folder."""
        where = ["--cache-dir", str(self._root / "another"), "--out", str(self._root / "manifest")]
        assert main(["index", str(self.folder), *_named(case), *where]) == 0
        return self._root / "manifest"

    def show(self, case: Case) -> str:
        """Returns what `streamer show` prints of the first sample."""
        assert main(["show", str(self.folder), *_named(case), "--sample", "0"]) == 0
        return self._out()

    def close(self) -> None:
        """Closes all datasets."""
        while self._made:
            self._made.pop().close()


def engine_below(root: Path, patch: pytest.MonkeyPatch) -> None:
    """Sets the folders of the engine that jobs use."""
    patch.setenv("STREAMER_CACHE_DIR", str(root / "cache"))
    patch.setenv("STREAMER_RUNTIME_DIR", str(root / "run"))
    patch.delenv("STREAMER_ENGINE", raising=False)


def samples_of(case: Case) -> list[object]:
    """Returns every sample of a case."""
    found = find(case.format, case.objects)
    opener = case.format.opener(facts_of(found))
    contents = contents_of(case.format, found, case.objects)
    return [opened(case, opener, memoryview(content), name) for content, name in contents]


class _Touched(MemoryStore):
    """Stands for a store in which one object got another version, with the same bytes."""

    def __init__(self, objects: dict[str, bytes], name: str) -> None:
        super().__init__(objects)
        self._name = URL + name

    async def list(self, url: str):
        async for page in super().list(url):
            yield [_touched(record) if record.url == self._name else record for record in page]


def _touched(record):
    return type(record)(record.url, record.size, "etag:another")


def _keys(manifest: Manifest, name: str | None = None) -> list[bytes]:
    """Returns the keys of all chunks, or of those with bytes of one object."""
    chunks = [manifest.chunk(number) for number in range(manifest.chunks)]
    return [c.key for c in chunks if name is None or any(e.object.url == URL + name for e in c.extents)]


def _blocks_of(hint: bytes) -> int:
    return len(decode_hints(hint)) if hint else 0


def _check_order(items: list[Span | Block], size: int) -> None:
    last = 0
    for item in items:
        if isinstance(item, Span):
            assert last <= item.start <= item.stop <= size, item
            last = item.stop
        else:
            assert item.samples >= 0
            sizes = [owner.size for owner in item.objects] or [size] * len(item.ranges)
            places = zip(item.ranges, sizes, strict=True)
            assert all(0 <= start < stop <= most for (start, stop), most in places), item


def _is_inside(view: memoryview, whole: memoryview) -> bool:
    if not len(view):
        return True
    first = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    base = np.frombuffer(whole, np.uint8).__array_interface__["data"][0]
    return base <= first and first + view.nbytes <= base + len(whole)


def more_memory() -> Callable[[], int]:
    """Returns what tells how many bytes this process's peak has grown since; tracemalloc takes ten times as long."""
    # From here on the peak is counted anew (man proc_pid_clear_refs).
    Path("/proc/self/clear_refs").write_text("5")
    before = _peak_bytes()
    return lambda: _peak_bytes() - before


def _peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def _mutate(case: Case, times: int) -> None:
    """Changes each object in turn, and runs index, recoding and opening to their end or to a refusal."""
    drawn = random.Random(7)
    # A store of many small objects is read as a whole each time.
    times //= max(1, len(case.objects) // 4)
    # A field whose name is damaged is not the one that an option names.
    refusals = (*REFUSALS, ConfigError) if {"columns", "delta_timestamps"} & case.format.options.keys() else REFUSALS
    for name, content in case.objects.items():
        for _ in range(times):
            objects = {**case.objects, name: mutated(content, drawn)}
            begun = time.process_time()
            with contextlib.suppress(*refusals):
                _read_all(case, objects)
            seconds = time.process_time() - begun
            assert seconds < MOST_SECONDS, f"{name}: {seconds:.1f} s"


def _read_all(case: Case, objects: dict[str, bytes]) -> None:
    found = find(case.format, objects)
    for source, items in found.items:
        _check_order(items, source.record.size)
    opener = case.format.opener(facts_of(found))
    refusal: Exception | None = None
    for content, name in contents_of(case.format, found, objects):
        try:
            opener.open(memoryview(content), name)
        except DecodeError as error:
            refusal = error
    if refusal is not None:
        raise refusal


def _named(case: Case) -> list[str]:
    return ["--format", case.format.name, "--format-options", json.dumps(case.format.options)]


def _new(batch: list[object], loader: StreamingDataLoader) -> list[object]:
    """Returns the samples of a batch that are no repeats."""
    return [sample for sample, again in zip(batch, loader.repeated, strict=True) if not again]


def _told(sample: dict[str, object]) -> dict[str, object]:
    """Returns a sample of a dataset as `expected.json` has it."""
    return json.loads(json.dumps({name: value if name == KEY else summary(value) for name, value in sample.items()}))


def _sorted(samples) -> list[object]:
    return sorted(samples, key=lambda sample: json.dumps(sample, sort_keys=True))


def _kept(samples: list[dict[str, object]]) -> list[dict[str, object]]:
    return samples
