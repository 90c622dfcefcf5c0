"""Shards of MDS and LitData that contradict their index.json, or are not read: each is refused by name."""

from __future__ import annotations

import itertools
import json
import struct
import time
from collections.abc import Callable, Mapping

import pytest

from streamer.decode.dispatch import SampleDecoder
from streamer.errors import ConfigError, DecodeError, ManifestError, RecodeError
from streamer.formats.base import Block, Format, SampleName
from streamer.formats.compressed import decompress_shard
from streamer.tables import index_json
from streamer.tables.litdata.format import LitData
from streamer.tables.mds import MDS
from tests.formats.cases import URL, Case, block_bytes, contents_of, facts_of, find, read_case, recode
from tests.formats.contract import samples_of

INDEX = "index.json"
Edit = Callable[[dict], object]


def objects_of(folder: str, edit: Edit | None = None, **replaced: bytes) -> dict[str, bytes]:
    """Returns the objects of a case, with another index."""
    objects = dict(read_case(MDS(), folder).objects) | replaced
    if edit is not None:
        index = json.loads(objects[INDEX])
        edit(index)
        objects[INDEX] = json.dumps(index).encode()
    return objects


def refusal(chosen: Format, objects: Mapping[str, bytes]) -> ManifestError:
    """Returns the error with which the index refuses them."""
    with pytest.raises(ManifestError) as caught:
        find(chosen, objects)
    return caught.value


def put(content: bytes, place: int, layout: str, value: int) -> bytes:
    """Returns the content with a number in it."""
    changed = bytearray(content)
    struct.pack_into(layout, changed, place, value)
    return bytes(changed)


def shard(index: dict) -> dict:
    """Returns the first shard of an index of MDS."""
    return index["shards"][0]


# ---------------------------------------------------------------- index files


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda index: index.update(version=1), "version 1 of MDS"),
        (lambda index: shard(index).update(version=1), "version 1 of MDS"),
        (lambda index: shard(index).update(format="csv"), "of format 'csv', not 'mds'"),
        (lambda index: [s.update(column_encodings=["mystery"] * 4) for s in index["shards"]], "encoded as 'mystery'"),
        (lambda index: shard(index).update(column_names=["a"]), "not as many names"),
        (lambda index: index["shards"][1].update(column_names=["a", "b", "c", "d"]), "different datasets"),
        (lambda index: shard(index).update(compression="zpaq"), "compressed with 'zpaq'"),
        (lambda index: shard(index)["zip_data"].update(basename="../x.mds.zstd"), "is not among the"),
        (lambda index: shard(index).update(samples=-1), "Expected `int` >= 0"),
        (lambda index: shard(index)["zip_data"].update(bytes=7), "index.json says 7"),
        (lambda index: shard(index)["raw_data"].update(bytes=7), "7 bytes are too few"),
    ],
)
def test_an_index_of_mds_that_cannot_be_used(edit: Edit, said: str):
    """An index.json of MDS that is not read is refused with what is wrong in it."""
    assert said in str(refusal(MDS(), objects_of("mds/zstd", edit)))


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda index: index["config"].update(encryption={"level": "chunk"}), "encrypted"),
        (lambda index: index["config"].update(data_format=["str"]), "15 leaves, and 1 formats"),
        (lambda index: index["config"].update(data_spec=None), "what its items consist of"),
        (
            lambda index: index["config"].update(
                data_spec='[1, {"type": "a.B", "context": null, "children_spec": []}]'
            ),
            "a.B",
        ),
        (lambda index: index["config"]["data_format"].__setitem__(0, "no_header_numpy:14"), "without a pickle"),
        (lambda index: index["config"]["data_format"].__setitem__(0, "no_header_numpy:x"), "cannot be read"),
        (lambda index: index["chunks"][0].update(chunk_size=8), "it has 7 samples, index.json says 8"),
        (lambda index: index["chunks"][0].update(chunk_bytes=8), "index.json says 8"),
        (lambda index: index["chunks"][0].update(filename="chunk-7-7.bin"), "chunk-7-7.bin is not among the 2 chunks"),
        (lambda index: index["config"].update(data_spec="[" * 10_000), "cannot be read"),
    ],
)
def test_an_index_of_litdata_that_cannot_be_used(edit: Edit, said: str):
    """An index.json of LitData that is not read is refused with what is wrong in it."""
    assert said in str(refusal(LitData(), objects_of("litdata/items-0.2.51", edit)))


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"[]", b'{"shards": 3}', b"\xff\xfe"])
@pytest.mark.parametrize(("chosen", "folder"), [(MDS(), "mds/plain"), (LitData(), "litdata/items")])
def test_an_index_that_is_none(chosen: Format, folder: str, content: bytes):
    """The error for an index.json that cannot be parsed has its url."""
    assert f"{URL}{INDEX}" in str(refusal(chosen, objects_of(folder, **{INDEX: content})))


def test_an_index_that_is_too_long(monkeypatch: pytest.MonkeyPatch):
    """An index.json longer than MAX_INDEX_BYTES is refused."""
    monkeypatch.setattr(index_json, "MAX_INDEX_BYTES", 100)
    assert "1 to 100 are read" in str(refusal(MDS(), objects_of("mds/plain")))


def test_no_index():
    """MDS shards without an index.json are refused with the name of what is missing."""
    objects = objects_of("mds/plain")
    del objects[INDEX]
    assert "no index.json is listed" in str(refusal(MDS(), objects))


def test_many_shards():
    """An index of 20,000 shards (1.3 TB), of which the last one is missing, is refused within 10 s of CPU."""
    index = json.loads(objects_of("mds/plain")[INDEX])
    one = index["shards"][0]
    index["shards"] = [one] * 20_000 + [one | {"raw_data": one["raw_data"] | {"basename": "missing.mds"}}]
    begun = time.process_time()
    assert "missing.mds is not among" in str(
        refusal(MDS(), objects_of("mds/plain", **{INDEX: json.dumps(index).encode()}))
    )
    assert time.process_time() - begun < 10


# ---------------------------------------------------------------- several index files


def test_streams_and_joined_parts():
    """Two folders of MDS with an index each are one dataset; an index above them for all is read alone."""
    plain = read_case(MDS(), "mds/plain")
    names = [name for name in plain.objects if name != INDEX]
    split = {f"{part}/{name}": content for part in "ab" for name, content in plain.objects.items()}
    twice = Case("two", MDS(), split, [])
    assert samples_of(twice) == [*plain.samples, *plain.samples]
    index = json.loads(plain.objects[INDEX])
    joined = {"version": 2, "shards": []}
    for part in "ba":
        for one in index["shards"]:
            raw = one["raw_data"] | {"basename": f"{part}/{one['raw_data']['basename']}"}
            joined["shards"].append(one | {"raw_data": raw})
    both = {**split, INDEX: json.dumps(joined).encode()}
    found = find(MDS(), both)
    assert [source.record.url.removeprefix(URL)[0] for source, _ in found.items] == ["b"] * len(names) + ["a"] * len(
        names
    )
    assert len(found.survey_needs) == 1
    assert [need.object.url for need in found.survey_needs[0]] == [URL + INDEX]


def test_another_dataset_beside_it():
    """LitData folders whose items have other fields are refused as one dataset."""
    objects = {
        f"{part}/{name}": content
        for part in ("items", "items-0.2.51")
        for name, content in objects_of(f"litdata/{part}").items()
    }
    assert "other fields" in str(refusal(LitData(), objects))


# ---------------------------------------------------------------- shards


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (0, 6, "it has 6 samples"),
        (0, 2**31, "samples, index.json says"),
        (4, 3, "behind its head"),
        (8, 2**32 - 1, "behind its head"),
    ],
)
@pytest.mark.parametrize(
    ("chosen", "folder", "name"),
    [(MDS(), "mds/plain", "shard.00000.mds"), (LitData(), "litdata/items", "chunk-0-0.bin")],
    ids=["mds", "litdata"],
)
def test_a_head_that_is_wrong(chosen: Format, folder: str, name: str, place: int, value: int, said: str):
    """A shard whose header has wrong counts or places is refused, and Index(damaged='skip') can leave it out."""
    objects = objects_of(folder)
    error = refusal(chosen, {**objects, name: put(objects[name], place, "<I", value)})
    assert said in str(error)
    assert error.details["url"] == URL + name
    assert "reason" in error.details


@pytest.mark.parametrize(
    ("chosen", "folder", "name"),
    [(MDS(), "mds/plain", "MDS"), (LitData(), "litdata/items", "LitData")],
    ids=["mds", "litdata"],
)
def test_samples_that_do_not_add_up(chosen: Format, folder: str, name: str):
    """A sample of MDS or LitData whose lengths of columns do not add up is a DecodeError."""
    case = read_case(chosen, folder)
    found = find(chosen, case.objects)
    opener = chosen.opener(facts_of(found))
    content = contents_of(chosen, found, case.objects)[0][0]
    for wrong in (content[:-1], content + b"\0", content[:3], b"", put(content, 0, "<I", 2**32 - 1)):
        with pytest.raises(DecodeError, match=name):
            opener.open(memoryview(wrong), SampleName())


def test_frames_out_of_order():
    """A table of frames that does not tile LitData's chunk is refused."""
    objects = objects_of("litdata/frames")
    content = objects["chunk-0-0.bin"]
    items = struct.unpack_from("<I", content, 12)[0]
    table = 24 + 4 * (items + 1)
    swapped = content[:table] + content[table + 24 : table + 48] + content[table : table + 24] + content[table + 48 :]
    assert "one behind the other" in str(refusal(LitData(), {**objects, "chunk-0-0.bin": swapped}))
    assert "not a chunk of frames" in str(refusal(LitData(), {**objects, "chunk-0-0.bin": b"LDFZ02" + content[6:]}))


@pytest.mark.parametrize(
    ("place", "layout", "value", "said"),
    [
        (-12, "<I", 2**32 - 1, "not an Arrow file"),
        (-22, "<i", 2**31 - 1, "the footer of its rows has"),
        (-22, "<i", -1, "the footer of its rows has"),
        (-8, "<Q", 0, "no rows of Arrow are at its end"),
    ],
)
def test_an_arrow_file_that_is_none(place: int, layout: str, value: int, said: str):
    """A LitData chunk whose Arrow footer has lengths beyond the file, or another end, is refused."""
    objects = objects_of("litdata/arrow")
    wrong = put(objects["chunk-0-1.bin"], len(objects["chunk-0-1.bin"]) + place, layout, value)
    assert said in str(refusal(LitData(), {**objects, "chunk-0-1.bin": wrong}))


# ---------------------------------------------------------------- blocks


def blocks_of(folder: str, chosen: Format, edit: Edit | None = None):
    """Returns what is found, and the first block with its bytes."""
    objects = objects_of(folder, edit)
    found = find(chosen, objects)
    source, (block, *_) = found.items[0]
    assert isinstance(block, Block)
    return found, block, block_bytes(block, objects[source.record.url.removeprefix(URL)])


@pytest.mark.parametrize("factor", [0.5, 0.999, 1.001, 1000])
@pytest.mark.parametrize("name", ["zstd", "gz", "br", "bz2", "snappy"])
def test_a_shard_that_unpacks_to_another_size(name: str, factor: float):
    """A shard that decompresses to another size than index.json says is refused, shorter or longer."""

    def lie(index: dict) -> None:
        shard(index)["raw_data"]["bytes"] = int(shard(index)["raw_data"]["bytes"] * factor) + (factor > 1)

    found, block, content = blocks_of(f"mds/{name}", MDS(), lie)
    with pytest.raises(RecodeError, match=r"not the MDS shard that its index\.json describes"):
        recode(MDS(), found, block, content)


@pytest.mark.parametrize("name", ["sha1", "md5", "sha3_256"])
def test_hashes(name: str):
    """The first hash of an MDS shard that hashlib has is compared; hashes that it lacks are not."""

    def lie(index: dict) -> None:
        shard(index)["zip_data"]["hashes"] = {"xxh64": "00", name: "00"}

    found, block, content = blocks_of("mds/zstd", MDS(), lie)
    with pytest.raises(RecodeError, match=f"its {name} is .*, index.json says 00"):
        recode(MDS(), found, block, content)


def test_uncompressed_shards_are_taken_where_both_are_there():
    """Raw shards beside compressed ones (`keep_zip`) are read instead, if all are there."""
    case = read_case(MDS(), "mds/zstd")
    raw = {}
    for one in json.loads(case.objects[INDEX])["shards"]:
        packed = memoryview(case.objects[one["zip_data"]["basename"]])
        raw[one["raw_data"]["basename"]] = bytes(decompress_shard("zstd", packed, one["raw_data"]["bytes"]))
    both = find(MDS(), {**case.objects, **raw})
    assert not any(isinstance(item, Block) for _, items in both.items for item in items)
    assert samples_of(Case("both", MDS(), {**case.objects, **raw}, [])) == list(case.samples)
    name = min(raw)
    mixed = {**case.objects, name: raw[name]}
    assert all(isinstance(item, Block) for _, items in find(MDS(), mixed).items for item in items)
    assert samples_of(Case("mixed", MDS(), mixed, [])) == list(case.samples)


# ---------------------------------------------------------------- pickles


@pytest.mark.parametrize(
    ("chosen", "folder", "edit"),
    [
        (
            MDS(),
            "mds/zstd",
            lambda index: [s.update(column_encodings=["pkl", "int", "str", "json"]) for s in index["shards"]],
        ),
        (LitData(), "litdata/items", lambda index: index["config"]["data_format"].__setitem__(3, "pickle")),
        (LitData(), "litdata/items", lambda index: index["config"]["data_format"].__setitem__(3, "graph:pickle")),
    ],
)
def test_pickles_are_refused_before_the_first_sample(chosen: Format, folder: str, edit: Edit):
    """A field of pickles is refused by its schema; a rule for the field, or `allow_pickle`, permits it."""
    fields = facts_of(find(chosen, objects_of(folder, edit))).fields
    (name,) = (field.name for field in fields if field.kind == "pickle")
    with pytest.raises(ConfigError, match=f"field '{name}' is a pickle"):
        SampleDecoder().check(fields)
    SampleDecoder({name: None}).check(fields)
    SampleDecoder(None).check(fields)
    SampleDecoder(allow_pickle=True).check(fields)


def test_leaves_of_other_serializers_are_bytes():
    """Leaves of LitData by a user's serializer, and media that are not decoded, are fields of bytes."""
    words = ["mine", "graph", "video", "audio", "tifffile", "file:pdf", "nifti:nii"]

    def edit(index: dict) -> None:
        index["config"]["data_format"][:7] = words

    objects = objects_of("litdata/items", edit)
    found = find(LitData(), objects)
    kinds = [field.kind for field in facts_of(found).fields]
    assert kinds[:7] == ["bytes"] * 7
    content, name = contents_of(LitData(), found, objects)[3]
    _, fields = LitData().opener(facts_of(found)).open(memoryview(content), name)
    # An item has the sizes of its leaves, then their bytes.
    sizes = struct.unpack_from(f"<{len(kinds)}I", content)
    stops = list(itertools.accumulate(sizes, initial=4 * len(kinds)))
    assert [bytes(field.content) for field in fields[:7]] == [
        content[start:stop] for start, stop in itertools.pairwise(stops[:8])
    ]
