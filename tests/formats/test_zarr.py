"""Zarr meets the contract of the formats; what its index reads, fill values, and which stores are refused."""

from __future__ import annotations

import gzip
import json

import numcodecs.blosc
import numpy as np
import pytest

from streamer.errors import ManifestError, RecodeError
from streamer.tables.zarr.format import Zarr
from streamer.tables.zarr.metadata import read_metadata
from tests.formats.cases import Case, MemoryStore, block_bytes, built, facts_of, find, read_case, recode, samples_in
from tests.formats.contract import FormatContract, samples_of

NAMES = ("group", "plain", "sharded", "version_2")


@pytest.fixture(scope="module", autouse=True)
def _semaphore() -> None:
    """Makes blosc's semaphore, which numcodecs makes at its first use; otherwise that test leaves it over."""
    numcodecs.blosc.compress(b"a", b"lz4", 1, 1)


class TestZarr(FormatContract):
    @classmethod
    def cases(cls) -> list[Case]:
        return [read_case(Zarr(), f"zarr/{name}") for name in NAMES]


def array(**changes: object) -> bytes:
    """Returns the metadata of an array of version 3."""
    usual = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4, 2],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 2]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "bytes"}],
        "fill_value": 0,
    }
    return json.dumps(usual | changes).encode()


def array_2(**changes: object) -> bytes:
    """Returns the metadata of an array of version 2."""
    usual = {"zarr_format": 2, "shape": [4, 2], "chunks": [2, 2], "dtype": "|u1", "fill_value": 0, "order": "C"}
    return json.dumps(usual | {"compressor": None, "filters": None} | changes).encode()


def sharding(**changes: object) -> list[dict[str, object]]:
    """Returns the codec of shards."""
    index = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
    usual = {"chunk_shape": [1, 2], "codecs": [{"name": "bytes"}], "index_codecs": index}
    return [{"name": "sharding_indexed", "configuration": usual | changes}]


PLAIN = {"zarr.json": array(), "c/0/0": b"abcd", "c/1/0": b"efgh"}


def test_nothing_but_metadata_is_read():
    """The index of zarr arrays without shards reads metadata alone, because the listing says where chunks are."""
    found = find(Zarr(), PLAIN)
    assert [[span.start for span in spans] for _, spans in found.items] == [[0, 2], [0, 2]]
    assert not any(found.needs.values())
    assert [need.object.url.rpartition("/")[2] for (need,) in found.survey_needs] == ["zarr.json"]
    grouped = read_case(Zarr(), "zarr/group")
    assert not any(find(grouped.format, grouped.objects).needs.values())


def test_indexes_of_shards_are_read_at_once():
    """The indexes of an array's shards are read at once, and nothing else of the shards."""
    case = read_case(Zarr(), "zarr/sharded")
    found = find(case.format, case.objects)
    # 8 chunks in each shard of images, 12 in that of part, 2 in those of labels.
    bytes_read = [[need.stop - need.start for need in ask] for asks in found.needs.values() for ask in asks]
    assert bytes_read == [[8 * 16 + 4] * 3, [2 * 16 + 4] * 2, [12 * 16 + 4]]


def test_arrays_by_name():
    """Zarr arrays are chosen by path under names of the user's; a path without an array is refused."""
    objects = {
        "zarr.json": json.dumps({"zarr_format": 3, "node_type": "group"}).encode(),
        "text/zarr.json": array(data_type="string"),
        "more/zarr.json": json.dumps({"zarr_format": 3, "node_type": "group"}).encode(),
        **{f"more/x/{name}": content for name, content in PLAIN.items()},
    }
    case = Case("named", Zarr(arrays={"image": "more/x"}), objects, [])
    assert [sample["image"]["shape"] for sample in samples_of(case)] == [[2]] * 4
    with pytest.raises(ManifestError, match="no array 'more/y/', but more/, more/x/, text/"):
        find(Zarr(arrays={"image": "more/y"}), objects)
    with pytest.raises(ManifestError, match=r"text/zarr\.json cannot be read by rows: it holds 'string', not numbers"):
        find(Zarr(), objects)


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        (array(zarr_format=4), "zarr_format 4"),
        (array(zarr_format="https://purl.org/zarr/spec/protocol/core/3.0"), "zarr_format 'https"),
        (array(data_type="string"), "'string', not numbers"),
        (array(data_type={"name": "numpy.datetime64"}), "not numbers"),
        (array(chunk_grid={"name": "rectilinear", "configuration": {}}), "rectilinear"),
        (array(chunk_grid={"name": "regular", "configuration": {"chunk_shape": [2]}}), r"chunks \[2\]"),
        (array(chunk_grid={"name": "regular", "configuration": {"chunk_shape": [0, 2]}}), r"chunks \[0, 2\]"),
        (array(shape=[1 << 60, 2]), "its shape is"),
        (array(shape=[4, 0]), "no rows of a byte"),
        (array(shape=[-1, 2]), "its shape is"),
        (array(codecs=[{"name": "bytes"}, {"name": "pcodec"}]), "'pcodec'"),
        (array(codecs=[{"name": "vlen-utf8"}]), "vlen-utf8"),
        (array(codecs=[{"name": "transpose", "configuration": {"order": [0]}}, {"name": "bytes"}]), "transposed"),
        (array(codecs=[]), "stored by codecs"),
        (array(codecs=sharding(chunk_shape=[3, 2])), "not a multiple"),
        (array(codecs=sharding(index_codecs=[{"name": "gzip"}])), "stored by codecs gzip"),
        (array(codecs=sharding(codecs=sharding())), "sharding_indexed"),
        (array(codecs=sharding(chunk_shape=2)), "not described"),
        (array(fill_value=-1), "fill value -1"),
        (array(fill_value=[1, 2]), r"fill value \[1, 2\].*several numbers"),
        (array(fill_value="0x100"), "fill value '0x100'"),
        (array(storage_transformers=[{}]), "transformers"),
        (array(chunk_key_encoding={"name": "mine"}), "named as"),
        (array()[:-1], "metadata cannot be read"),
        (b"\xff", "metadata cannot be read"),
        (b"[" * 100_000, "metadata cannot be read"),
    ],
)
def test_arrays_that_are_not_read(metadata, reason):
    """Zarr arrays of version 3 that are not read are refused with the file, the reason and what to do."""
    with pytest.raises(ManifestError, match=reason) as caught:
        find(Zarr(), {**PLAIN, "zarr.json": metadata})
    assert "zarr.json" in str(caught.value)
    assert "Zarr(arrays=" in str(caught.value)


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        (array_2(dtype="|O"), "not numbers"),
        (array_2(dtype=[["a", "<i4"]]), "not numbers"),
        (array_2(filters=[{"id": "delta"}]), "delta"),
        (array_2(compressor={"id": "zfpy"}), "zfpy"),
        (array_2(order="A"), "order='A'"),
        (array_2(zarr_format=1), "zarr_format 1"),
    ],
)
def test_arrays_of_version_2_that_are_not_read(metadata, reason):
    """Zarr arrays of version 2 that are not read are refused with the reason."""
    with pytest.raises(ManifestError, match=reason):
        find(Zarr(), {".zarray": metadata, "0.0": b"abcd", "1.0": b"efgh"})


@pytest.mark.parametrize(
    ("objects", "reason"),
    [
        ({"c/0/0": b"abcd"}, "no zarr store"),
        ({**PLAIN, "c/1/0": b"efg"}, r"c/1/0 is damaged: a chunk of shape \(2, 2\) and type \|u1 has 4 bytes"),
        ({**PLAIN, "c/1/0": b""}, "c/1/0 is damaged"),
        ({**PLAIN, "zarr.json": b""}, "has 0 bytes"),
        ({"zarr.json": array(), "x/0": b""}, "never written"),
        ({"zarr.json": array(shape=[1 << 30, 2]), "c/0/0": b"abcd"}, "1073741822 rows from row 2 on, .* never written"),
        ({"zarr.json": array(codecs=sharding()), "c/0/0": b"abcd"}, "index of a shard of this array has 36 bytes"),
        ({"zarr.json": array(codecs=sharding()), "c/0/0": bytes(36)}, "checksum of the index"),
    ],
)
def test_objects_that_contradict_the_metadata(objects, reason):
    """Zarr stores whose objects contradict the metadata are refused with the object or what is missing."""
    with pytest.raises(ManifestError, match=reason):
        find(Zarr(), objects)


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([0, 2, 1, 1 << 40], "outside of it"),
        ([0, 2, 1 << 63, 2], "outside of it"),
        ([0, 2, 2, 3], "do not have 2 bytes"),
    ],
)
def test_indexes_that_point_elsewhere(entries, reason):
    """A shard's index that points outside the shard, or to chunks of another length, is refused."""
    without = sharding(index_codecs=[{"name": "bytes", "configuration": {"endian": "little"}}])
    objects = {"zarr.json": array(shape=[2, 2], codecs=without), "c/0/0": b"abcd" + np.array(entries, "<u8").tobytes()}
    with pytest.raises(ManifestError, match=reason):
        find(Zarr(), objects)


async def test_an_array_that_was_resized(tmp_path):
    """A zarr array that was resized has other rows, and other keys of chunks, for the same objects."""
    chunks = {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}}}
    keys = []
    for columns in (3, 2):
        metadata = array(shape=[2, columns], codecs=[{"name": "bytes"}, {"name": "gzip"}], **chunks)
        objects = {"zarr.json": metadata, "c/0/0": gzip.compress(b"abcdef", mtime=0)}
        manifest = await built(Zarr(), MemoryStore(objects), tmp_path / str(columns))
        keys.append(manifest.chunk(0).key)
        found = find(Zarr(), objects)
        [content] = [block_bytes(block, objects["c/0/0"], objects) for block in found.items[0][1]]
        assert recode(Zarr(), found, found.items[0][1][0], content) == [b"abcdef"[i : i + columns] for i in (0, 3)]
    assert keys[0] != keys[1]


def test_stores_of_two_kinds():
    """Zarr stores whose rows differ in type are refused with both."""
    stores = {f"a.zarr/{name}": content for name, content in PLAIN.items()}
    other = {"b.zarr/zarr.json": array(data_type="int8"), "b.zarr/c/0/0": b"abcd", "b.zarr/c/1/0": b"efgh"}
    with pytest.raises(ManifestError, match=r"b\.zarr/zarr\.json .* rows of .*i1\[2\].*u1\[2\]"):
        find(Zarr(), stores | other)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("NaN", np.nan), ("-Infinity", -np.inf), (1.5, 1.5), (None, 0), ("0x7fc00000", np.nan)],
)
def test_fill_values(value, expected):
    """Zarr's fill values are read as JSON numbers, null, names such as NaN, and hexadecimal bits."""
    found = read_metadata("zarr.json", memoryview(array(data_type="float32", fill_value=value)))
    assert np.array_equal(np.frombuffer(found.fill, found.dtype), [expected], equal_nan=True)


@pytest.mark.parametrize("packing", ["blosc", "lz4", "zlib", "zstd", "gzip", "bz2", "crc32c"])
@pytest.mark.parametrize("stored", [b"", b"abcd", bytes(100), b"\xff" * 100])
def test_chunks_that_cannot_be_unpacked(packing, stored):
    """A zarr chunk that cannot be decompressed to its shape is refused, whatever length its bytes state."""
    codecs = [{"name": "bytes"}, {"name": packing}]
    found = find(Zarr(), {"zarr.json": array(codecs=codecs), "c/0/0": stored or b"x", "c/1/0": b"x"})
    [block] = found.items[0][1]
    with pytest.raises(RecodeError, match=r"chunk|tile"):
        recode(Zarr(), found, block, stored * len(block.ranges))


def test_a_chunk_that_unpacks_to_more():
    """A zarr chunk that decompresses to more than its shape is refused."""
    bomb = numcodecs.Zlib().encode(bytes(8 << 20))
    objects = {".zarray": array_2(compressor={"id": "zlib"}, shape=[2, 2]), "0.0": bomb}
    found = find(Zarr(), objects)
    [(_, [block])] = found.items
    with pytest.raises(RecodeError, match="cut off, or has more than 65540 bytes"):
        recode(Zarr(), found, block, block_bytes(block, bomb, objects))
    assert facts_of(found).fields[0].kind == "u1[2]"


@pytest.mark.parametrize("codecs", [[{"name": "bytes"}], [{"name": "bytes"}, {"name": "gzip"}]])
@pytest.mark.parametrize("unwritten", [{0}, {2}, {1, 2}, {0, 1, 3}])
async def test_stores_of_the_fill_value_alone(unwritten, codecs, tmp_path):
    """Zarr stores and chunks that were never written have the fill value in their rows, in their places."""
    objects, expected = {}, []
    for number in range(4):
        place = f"s{number}.zarr"
        objects[f"{place}/zarr.json"] = array(codecs=codecs, fill_value=100 + number)
        rows = np.full((4, 2), 100 + number, np.uint8)
        if number not in unwritten:
            for chunk in (0, 1) if number else (1,):
                rows[2 * chunk : 2 * chunk + 2] = 10 * number + chunk
                content = bytes([10 * number + chunk]) * 4
                objects[f"{place}/c/{chunk}/0"] = gzip.compress(content) if len(codecs) > 1 else content
        expected += rows.tolist()
    assert [sample["array"].tolist() for sample in samples_in(Zarr(), objects)] == expected
    assert (await built(Zarr(), MemoryStore(objects), tmp_path)).samples == 16


def test_metadata_without_a_chunk_are_no_dataset():
    """The error for zarr metadata without any chunk says what is missing; other files get no such text."""
    assert "no chunk, so that all of its values are the fill value" in Zarr().explain_empty(["a.zarr/zarr.json"])
    assert "no chunk" in Zarr().explain_empty(["readme.txt", ".zarray"])
    assert Zarr().explain_empty(["readme.txt"]) == ""


def test_windows_of_stores_of_the_fill_value_alone():
    """Windows over a zarr store that was never written are refused with the store."""
    objects = {f"a.zarr/{name}": content for name, content in PLAIN.items()} | {"b.zarr/zarr.json": array()}
    with pytest.raises(ManifestError, match=r"b\.zarr/zarr\.json: none of its chunks was written, and windows"):
        find(Zarr(window=(2, 2)), objects)


@pytest.mark.parametrize("long", [True, False])
def test_an_array_of_the_fill_value_beside_another(long):
    """A zarr array that was never written has its fill value beside another, also where its rows are longer."""
    shape = {
        "shape": [4, 8 if long else 2],
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 2]}},
    }
    objects = {"zarr.json": json.dumps({"zarr_format": 3, "node_type": "group"}).encode()}
    objects |= {"x/zarr.json": array(fill_value=7, **shape), **{f"y/{name}": each for name, each in PLAIN.items()}}
    found = samples_in(Zarr(), objects)
    assert [sample["y"].tolist() for sample in found] == [list(pair) for pair in (b"ab", b"cd", b"ef", b"gh")]
    assert all(sample["x"].tolist() == [7] * (8 if long else 2) for sample in found)


@pytest.mark.parametrize("items", [1, 4, 30, 300])
def test_chunks_of_lz4_that_are_small(items):
    """Chunks of lz4 with constant rows, smaller than blosc's header, are read."""
    rows = np.full((2, items), 3, np.uint8)
    chunks = {"shape": [2, items], "chunks": [1, items], "compressor": {"id": "lz4", "acceleration": 1}}
    packed = numcodecs.LZ4().encode(rows[0])
    found = samples_in(Zarr(), {".zarray": array_2(**chunks), "0.0": bytes(packed), "1.0": bytes(packed)})
    assert np.array_equal(np.stack([sample["array"] for sample in found]), rows)
