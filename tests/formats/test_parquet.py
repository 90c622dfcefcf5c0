"""Parquet meets the contract of the formats, by row groups, runs of pages and columns; and older manifests of it."""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamer import StreamingDataset
from streamer.decode.dispatch import SampleDecoder
from streamer.formats.base import FieldSpec, SampleName
from streamer.manifest.blocks import recoded_chunk_key
from streamer.tables.parquet import pages
from streamer.tables.parquet.format import Parquet
from tests.formats.cases import (
    Case,
    Found,
    MemoryStore,
    block_bytes,
    built,
    facts_of,
    find,
    opened,
    read_case,
    recode,
    run,
)
from tests.formats.contract import FormatContract


def _projected(case: Case, *columns: str) -> Case:
    """Returns a case of some of the columns."""
    samples = [{name: sample[name] for name in columns} for sample in case.samples]
    name = f"{case.name} {'+'.join(columns)}"
    return replace(case, name=name, format=Parquet(columns=columns), samples=samples, raw=case.raw & {*columns})


def _cases() -> list[Case]:
    huggingface = read_case(Parquet(), "parquet/huggingface", raw=["image"])
    return [
        huggingface,
        read_case(Parquet(), "parquet/kinds", raw=["picture"]),
        read_case(Parquet(), "parquet/pages"),
        read_case(Parquet(), "parquet/codecs"),
        _projected(huggingface, "image", "label"),
    ]


class TestParquet(FormatContract):
    @classmethod
    def cases(cls) -> list[Case]:
        return _cases()

    @pytest.mark.parametrize("chunk_bytes", [1000, 4000, 12_000, 1 << 20])
    def test_runs_of_pages_are_the_rows(self, case: Case, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch):
        """Blocks of runs of pages tile the rows, however small the chunks are, and each row is what pyarrow reads."""
        monkeypatch.setattr(pages, "_MAX_EXTRA", 100)
        found = find(case.format, case.objects)
        opener, told, blocks = case.format.opener(facts_of(found)), [], []
        for source, _ in found.items:
            cut: list[object] = []
            steps = case.format.index(msgspec.structs.replace(source, chunk_bytes=chunk_bytes), facts_of(found))
            run(steps, case.objects, source.record, [], cut.append)
            whole = case.objects[source.record.url.removeprefix("s3://bucket/data/")]
            for block in cut:
                records = recode(case.format, found, block, block_bytes(block, whole))
                assert len(records) == block.samples
                told += [opened(case, opener, memoryview(record), SampleName()) for record in records]
            blocks.append(len(cut))
        assert told == list(case.samples)
        if case.name == "parquet/pages" and chunk_bytes == 1000:
            assert min(blocks) > 3, blocks


@pytest.mark.slow
def test_libraries_stay_out_of_trainers_and_engines():
    """Trainers and engines import no library of columns or arrays; only recoders do."""
    program = (
        "import sys; import streamer.service.server, streamer.loader.dataset;"
        "from streamer.formats import HDF5, Parquet, Zarr; from streamer.formats.base import Facts;"
        "[kind().opener(Facts()) for kind in (HDF5, Parquet, Zarr)];"
        "assert not {'pyarrow', 'cramjam', 'h5py', 'hdf5plugin', 'numcodecs'} & {*sys.modules}, 'imported'"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_class_names_and_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A dataset of one Parquet column has this field, and the class names of datasets' ClassLabel."""
    monkeypatch.setenv("STREAMER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "run"))
    folder = _cases()[0].write(tmp_path / "data") / "data"
    with closing(StreamingDataset(folder, format=Parquet(columns=("label",)), cache_bytes="1GB")) as dataset:
        assert dataset.classes == ["cat", "dog", "bird"]
        assert dataset[4] == {"__key__": "4", "label": 1}


def _nested_case() -> tuple[bytes, Found]:
    kind = pa.list_(pa.struct([("content", pa.binary()), ("price", pa.decimal128(5, 2)), ("ids", pa.list_(pa.int8()))]))
    rows = [[{"content": b"abc", "price": Decimal("1.50"), "ids": [1, 2]}, None], None, []]
    pairs = [[("k", 1)], None, []]
    written = io.BytesIO()
    table = pa.table({"parts": pa.array(rows, kind), "map": pa.array(pairs, pa.map_(pa.string(), pa.int64()))})
    pq.write_table(table, written)
    return written.getvalue(), find(Parquet(), {"a.parquet": written.getvalue()})


def _values(content: bytes, found: Found) -> list[dict[str, object]]:
    ((_, (block,)),) = found.items
    opener, decode = Parquet().opener(facts_of(found)), SampleDecoder()
    records = recode(Parquet(), found, block, block_bytes(block, content))
    return [decode("", opener.open(memoryview(record), SampleName())[1]) for record in records]


def test_nested_values_of_older_manifests():
    """Nested values of a manifest of version 0.1, which calls them JSON, have Base64, pairs and texts as then."""
    content, found = _nested_case()
    assert found.survey is not None
    older = [FieldSpec("parts", "json"), FieldSpec("map", "json")]
    facts = msgspec.structs.replace(facts_of(found), fields=tuple(older))
    found.survey = msgspec.structs.replace(found.survey, facts=facts)
    parts = [{"content": "YWJj", "price": "1.50", "ids": [1, 2]}, None]
    expected = [(parts, [["k", 1]]), (None, None), ([], [])]
    assert [(sample["parts"], sample["map"]) for sample in _values(content, found)] == expected


def test_records_of_older_manifests_are_not_read_as_nested_ones(tmp_path: Path):
    """Chunks of nested columns have other keys than older versions gave them; those of flat columns keep theirs."""
    content, found = _nested_case()
    manifest = asyncio.run(built(Parquet(), MemoryStore({"a.parquet": content}), tmp_path / "nested"))
    ((_, blocks),) = found.items
    before = recoded_chunk_key("parquet", 0, {}, manifest.object(0), blocks)
    assert manifest.chunk(0).key not in {b"", before}
    (part, _, _) = _values(content, found)
    assert (part["parts"][0]["content"], part["parts"][0]["price"], part["map"]) == (b"abc", 1.5, {"k": 1})
    case = _projected(_cases()[0], "label")
    flat = asyncio.run(built(case.format, MemoryStore(case.objects), tmp_path / "flat"))
    options = {"columns": ["label"]}
    keys = [
        recoded_chunk_key("parquet", 0, options, source.record, blocks)
        for source, blocks in find(case.format, case.objects).items
    ]
    assert [flat.chunk(number).key for number in range(flat.chunks)] == keys
