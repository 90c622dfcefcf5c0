"""What the recoder makes of files of annotations (rows, fields, refusals), and how keys find their rows; in-process."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamer.annotations.join import Joiner, JoinRules
from streamer.annotations.options import TableOptions
from streamer.annotations.parse import AnnotationRecoder
from streamer.annotations.table import AnnotationHead, AnnotationTable, hash_of
from streamer.errors import ConfigError, DecodeError, RecodeError
from streamer.formats.chunkfile import RecordTable, encode_table
from streamer.manifest.columns import BinaryColumn
from streamer.manifest.model import Codec
from streamer.recode.annotations import publish
from streamer.recode.results import Recoded
from tests.formats.mutations import mutated

ROWS = [
    {"file_name": "a/0001.jpg", "label": 3, "score": 0.5, "caption": "a dog,\na cat", "when": "2020-01-02"},
    {"file_name": "a/0002.jpg", "label": 4, "score": None, "caption": "", "when": "2020-01-03"},
    {"file_name": "b/0001.jpg", "label": -1, "score": 1.5, "caption": "ü", "when": "2021-12-31"},
]
CSV = (
    'file_name,label,score,caption,when\r\na/0001.jpg,3,0.5,"a dog,\na cat",2020-01-02\r\n'
    "a/0002.jpg,4,,,2020-01-03\r\nb/0001.jpg,-1,1.5,ü,2021-12-31\r\n"
).encode()
COCO: dict[str, Any] = {
    "images": [
        {"id": 7, "file_name": "0001.jpg", "height": 4, "width": 6},
        {"id": 5, "file_name": "0002.jpg", "height": 8, "width": 9},
    ],
    "annotations": [
        {"id": 1, "image_id": 5, "category_id": 20, "bbox": [1, 2, 3, 4], "area": 12, "iscrowd": 0},
        {"id": 2, "image_id": 5, "category_id": 10, "bbox": [0.5, 0.25, 1, 1], "area": 1.5, "iscrowd": 1},
    ],
    "categories": [{"id": 20, "name": "cat"}, {"id": 10, "name": "ant"}],
}


def lines(rows: list[dict[str, Any]]) -> bytes:
    return b"\n".join(map(msgspec.json.encode, rows))


def parquet(rows: list[dict[str, Any]]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue().to_pybytes()


def table(tmp_path: Path, name: str, content: bytes, part_mark: str = "", **options: Any) -> Joiner:
    """Returns the table of a file, as an engine publishes it and a worker opens it."""
    made = AnnotationRecoder(TableOptions(name, **options)).recode(memoryview(content), -1, b"")
    joined = b"".join(bytes(part) for part in made.parts)
    content = memoryview(joined + encode_table(made.lengths, made.part_lengths, made.part_ranges))
    edges = RecordTable.decode(content, len(made.lengths), Codec.RECORDS, len(content))
    place = tmp_path / "place"
    place.mkdir(exist_ok=True)
    folder = tmp_path / publish(Recoded(content, edges), place, tmp_path)
    return Joiner(JoinRules(folder, part_mark=part_mark), "auto")


def test_a_row_of_a_file_is_for_its_parts(tmp_path: Path) -> None:
    """A file's row serves the samples that the format cuts out of it; without a `part_mark` their keys are names."""
    rows = lines([{"file_name": "a.wav", "label": 1}, {"file_name": "b#t=2.wav", "label": 2}])
    joiner = table(tmp_path, "x.jsonl", rows, part_mark="#t=")
    assert [joiner.values(key, ())["label"] for key in ("a.wav#t=10,20", "b#t=2.wav#t=0,1", "a.wav")] == [1, 2, 1]
    joiner = table(tmp_path, "x.jsonl", rows)
    assert joiner.values("b#t=2.wav", ())["label"] == 2
    with pytest.raises(DecodeError, match="no annotations"):
        joiner.values("a.wav#t=10,20", ())


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.csv", CSV),
        ("x.csv", b"\xef\xbb\xbf" + CSV),
        ("x.TSV", CSV.replace(b'"a dog,', b'"a dog;').replace(b",", b"\t").replace(b"dog;", b"dog,")),
        ("x.jsonl", lines(ROWS)),
        ("x.json", json.dumps(ROWS, indent=1).encode()),
        ("x.parquet", parquet(ROWS)),
    ],
    ids=["csv", "csv with mark", "tsv", "jsonl", "json", "parquet"],
)
def test_every_kind_of_table_has_the_same_rows(tmp_path: Path, name: str, content: bytes) -> None:
    """CSV, TSV, JSON, JSON lines and Parquet give the same rows: typed values, None for null, dates as texts."""
    joiner = table(tmp_path, name, content)
    for row in ROWS:
        wanted = {column: value for column, value in row.items() if column != "file_name"}
        found = {column: value for column, value in joiner.values(row["file_name"], ()).items() if column in wanted}
        assert found == wanted
        assert type(found["label"]) is int


def test_lists_are_arrays_and_nested_values_json(tmp_path: Path) -> None:
    """Lists of numbers are writable arrays in memory of their own; other nested values are as in JSON."""
    rows = [
        {"file_name": "1.png", "boxes": [1.5, 2], "tags": ["a"], "objects": {"id": [1, 2]}},
        {"file_name": "2.png", "boxes": [], "tags": [], "objects": None},
    ]
    joiner = table(tmp_path, "x.jsonl", lines(rows))
    found = joiner.values("1.png", ())
    boxes = found["boxes"]
    assert isinstance(boxes, np.ndarray)
    assert boxes.tolist() == [1.5, 2]
    boxes[:] = 0
    again = joiner.values("1.png", ())["boxes"]
    assert isinstance(again, np.ndarray)
    assert again.tolist() == [1.5, 2]
    assert (found["tags"], found["objects"]) == (["a"], {"id": [1, 2]})
    assert joiner.values("2.png", ())["objects"] is None


def test_only_named_fields_are_kept_and_numbers_are_keys_as_written(tmp_path: Path) -> None:
    """`fields=` keeps these columns alone; the key "0139" of CSV keeps its zero, and integers are keys."""
    joiner = table(tmp_path, "x.csv", b"id,label,more\n0139,1,x\n0140,2,y\n", key="id", fields=("label",))
    assert joiner.values("0139", ()) == {"label": 1}
    joiner = table(tmp_path, "x.jsonl", b'{"id": 139, "label": 1}', key="id")
    assert joiner.values("139.jpg", ()) == {"label": 1}


def test_objects_of_coco_are_those_of_their_image(tmp_path: Path) -> None:
    """COCO's boxes are corners in the file's order, and labels count the classes in the order of category ids."""
    joiner = table(tmp_path, "x.json", json.dumps(COCO).encode())
    found = joiner.values("0002", ())
    assert joiner.table.head.classes == ("ant", "cat")
    assert {name: getattr(value, "tolist", lambda value=value: value)() for name, value in found.items()} == {
        "boxes": [[1, 2, 4, 6], [0.5, 0.25, 1.5, 1.25]],
        "labels": [1, 0],
        "area": [12, 1.5],
        "iscrowd": [0, 1],
        "image_id": 5,
        "height": 8,
        "width": 9,
    }
    without = joiner.values("0001.jpg", ())
    assert [getattr(without[name], "shape", None) for name in ("boxes", "labels")] == [(0, 4), (0,)]


def test_coco_has_captions_keypoints_and_segmentation_on_demand(tmp_path: Path) -> None:
    """COCO's captions are joined by default where there are no boxes; keypoints and segmentation where named."""
    captions = COCO | {"annotations": [{"image_id": 7, "caption": text} for text in ("one", "two")]}
    assert table(tmp_path, "x.json", json.dumps(captions).encode()).values("0001.jpg", ())["captions"] == ["one", "two"]
    points = {"keypoints": [1, 2, 2, 3, 4, 0], "segmentation": [[1, 1, 2, 2, 1, 2]]}
    people = COCO | {
        "annotations": [COCO["annotations"][0] | points],
        "categories": [{"id": 20, "name": "cat", "keypoints": ["nose", "tail"]}],
    }
    fields = ("keypoints", "segmentation", "category_ids")
    found = table(tmp_path, "x.json", json.dumps(people).encode(), fields=fields).values("0002.jpg", ())
    assert [getattr(found[name], "tolist", list)() for name in ("keypoints", "category_ids")] == [
        [[[1, 2, 2], [3, 4, 0]]],
        [20],
    ]
    assert found["segmentation"] == [points["segmentation"]]


def changed(**parts: Any) -> bytes:
    return json.dumps(COCO | parts).encode()


def first_object(**parts: Any) -> bytes:
    return changed(annotations=[COCO["annotations"][0] | parts])


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("x.csv", CSV + b"a/0002.jpg,1,1,x,2020-01-01\r\n", {}, "rows 1 and 3 have the same key 'a/0002.jpg'"),
        ("x.csv", CSV, {"key": "image"}, "no column of keys, 'image'.*one of file_name, label, score, caption, when"),
        ("x.csv", CSV, {"fields": ("labels",)}, "no field 'labels'; it has file_name, label"),
        ("x.csv", b"file_name,label\n", {}, "it has no rows"),
        ("x.csv", b"", {}, "no column of keys, 'file_name'"),
        ("x.csv", b"file_name,a\nx.jpg,1,2\n", {}, "Expected 2 columns, got 3"),
        ("x.jsonl", b'{"file_name": "a.jpg"}\n{"file": "b.jpg"}', {}, "row 1 has no 'file_name'"),
        ("x.jsonl", b'{"file_name": "a.jpg"}\n{"file_name": ', {}, "cannot be read"),
        ("x.parquet", parquet(ROWS)[:-9], {}, "cannot be read"),
        ("x.json", b'{"a": 1}', {}, "not COCO's JSON.*images"),
        ("x.json", b'{"images": NaN}', {}, "not COCO's JSON"),
        ("x.json", first_object(bbox=[1, 2, 3]), {}, r"annotation number 0.*length 4.*\"bbox\": \[1, 2, 3\]"),
        ("x.json", first_object(bbox=None), {}, "image 5 has no bbox"),
        ("x.json", first_object(category_id=3), {}, "category_id 3, which is none of the file's 2"),
        ("x.json", first_object(image_id=3), {}, "image_id 3, which no image has"),
        ("x.json", first_object(keypoints=[1, 2]), {"fields": ("keypoints",)}, "2 numbers as keypoints"),
        ("x.json", changed(images=[COCO["images"][0]] * 2), {}, "2 images have 1 ids"),
        ("x.json", changed(images=[COCO["images"][0], COCO["images"][0] | {"id": 5}]), {}, "same key '0001.jpg'"),
        ("x.json", changed(), {"key": "id"}, "named by 'file_name'"),
        ("x.csv", b"file_name,a,a\nx.jpg,1,2\n", {}, "several columns of the name 'a'"),
        (
            "x.csv",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 1\n",
            {},
            "it is a pointer of Git LFS",
        ),
        ("x.csv", b"file_name,file_name,a\nx.jpg,y.jpg,2\n", {"fields": ("a",)}, "several columns of .* 'file_name'"),
        (
            "x.csv",
            "file_name,a\nx.jpg,b\ny.jpg,caf\xe9\n".encode("latin-1"),
            {},
            r"line 3, in column 'a' .*UTF-8.*iconv",
        ),
        ("x.csv", "file_name,a\nx.jpg,b\n\xe9.jpg,c\n".encode("latin-1"), {}, r"line 3 has text that is not UTF-8"),
        ("x.csv", "file_name,a\nx.jpg,b\n".encode("utf-16"), {}, "it is UTF-16"),
        ("x.tsv", b'file_name\ta\nx\t"1"\ny\t"foo\nz\tb\n', {}, "line 3 has a quote that does not end on it"),
        ("x.json", b'[{"file_name": "a", "x": NaN}]', {}, "it has NaN at byte 25"),
        ("x.json", first_object(area=float("-inf")), {}, "it has -Infinity at byte"),
        ("x.json", changed(annotations=[{"image_id": 5, "segments_info": [{"id": 1}]}]), {}, "panoptic"),
        ("x.json", changed(categories=[{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]), {}, "the id 1, 'a' and 'b'"),
        (
            "x.json",
            changed(images=[{"id": 5, "file_name": "a"}, COCO["images"][0]]),
            {},
            "1 of 2 images have no height",
        ),
        ("x.json", changed(images=[{"id": 5, "file_name": "a"}], annotations=[]), {"fields": ("width",)}, "no width"),
        (
            "x.json",
            changed(images=[{"id": 1 << 63, "file_name": "a"}], annotations=[]),
            {},
            "image id 9223372036854775808",
        ),
        ("x.json", changed(images=[{"id": 5}], annotations=[]), {}, "image 5 has neither a file_name nor a coco_url"),
        ("x.json", first_object(iscrowd=256), {}, "the iscrowd 256 does not fit into uint8"),
    ],
)
def test_bad_files_are_refused_with_a_reason(
    tmp_path: Path, name: str, content: bytes, options: dict[str, Any], message: str
) -> None:
    """A bad file of annotations is refused with the row, key or column, and what there is."""
    with pytest.raises((RecodeError, ConfigError), match=message):
        table(tmp_path, name, content, **options)


@pytest.mark.parametrize("several", [60, pytest.param(2000, marks=pytest.mark.formats)])
@pytest.mark.parametrize(
    ("name", "content"),
    [("x.json", changed()), ("x.csv", CSV), ("x.jsonl", lines(ROWS)), ("x.parquet", parquet(ROWS))],
    ids=["coco", "csv", "jsonl", "parquet"],
)
def test_damaged_files_are_read_or_refused(name: str, content: bytes, several: int) -> None:
    """Damaged files of annotations are read, or refused with RecodeError or ConfigError; each of them occurs."""
    drawn, refused = random.Random(several), 0
    for _ in range(several):
        try:
            AnnotationRecoder(TableOptions(name)).recode(memoryview(mutated(content, drawn)), -1, b"")
        except (RecodeError, ConfigError):
            refused += 1
    assert 0 < refused <= several


@pytest.mark.parametrize(
    ("content", "caption"),
    [
        (b'file_name\tc\na\tx\nb\t"foo\nc\tbar\nd\tbaz\n', '"foo'),
        (b'file_name\tc\na\tx\nc\tbar\nd\tbaz\nb\t"foo\n', '"foo'),
        (b'file_name\tc\na\tx\nb\t5" nail\nc\tbar\nd\tbaz\n', '5" nail'),
        (b'file_name\tc\r\na\t"x"\r\nb\t"a ""b"" c"\r\nc\tbar\r\nd\tbaz\r\n', 'a "b" c'),
        (b'file_name\tc\na\tx\nb\t"foo\nbar"\nc\tbar\nd\tbaz\n', "foo\nbar"),
        (b'file_name\tc\na\tx\nb\t"foo\tbar"\nc\tbar\nd\tbaz\n', "foo\tbar"),
    ],
)
def test_quotes_of_tsv(tmp_path: Path, content: bytes, caption: str) -> None:
    """Quotes in TSV enclose a field where both ends are there, and are letters elsewhere, so that no row is lost."""
    joiner = table(tmp_path, "x.tsv", content)
    assert [joiner.values(key, ())["c"] for key in "bcd"] == [caption, "bar", "baz"]


def test_a_column_that_the_first_object_lacks(tmp_path: Path) -> None:
    """A JSON list has the columns of all its objects, None where an object lacks one."""
    joiner = table(tmp_path, "x.json", b'[{"file_name": "a"}, {"file_name": "b", "n": 3}]')
    assert [joiner.values(key, ())["n"] for key in "ab"] == [None, 3]


def test_images_of_lvis_are_named_by_their_urls(tmp_path: Path) -> None:
    """Images of LVIS, without file_name, are named by coco_url; a byte order mark before the JSON is skipped."""
    images = [{"id": 7, "coco_url": "http://x.org/train2017/0001.jpg", "height": 4, "width": 6}]
    content = b"\xef\xbb\xbf" + changed(images=images, annotations=[])
    assert table(tmp_path, "x.json", content).values("0001.jpg", ())["image_id"] == 7


def test_sizes_that_no_image_has_are_no_fields(tmp_path: Path) -> None:
    """Height and width that no image of a COCO file has are left out, and are not 0."""
    content = changed(images=[{"id": 5, "file_name": "0001.jpg"}])
    assert list(table(tmp_path, "x.json", content).values("0001.jpg", ())) == [
        *("boxes", "labels", "area", "iscrowd", "image_id"),
    ]


@pytest.mark.parametrize(
    ("keys", "prefix"),
    [
        (["img/a.jpg", "img-2/a.jpg", "img/sub/a.jpg"], ""),
        (["img/a.jpg", "img.old/a.jpg", "img/sub/a.jpg"], ""),
        (["train/x/a.jpg", "train/x-1/a.jpg", "train/x/y/a.jpg"], "train"),
        (["train/x/a.jpg", "train/x/y/a.jpg"], "train/x"),
        (["img/a.jpg", "img/b.jpg"], ""),
    ],
)
def test_the_prefix_is_the_folder_that_contains_all_keys(tmp_path: Path, keys: list[str], prefix: str) -> None:
    """A table's prefix is the folder that contains all keys: "img-2" is outside of "img"."""
    rows = lines([{"file_name": key, "label": number} for number, key in enumerate(keys)])
    table(tmp_path, "x.jsonl", rows)
    (found,) = tmp_path.glob("**/annotations.json")
    assert msgspec.json.decode(found.read_bytes()).get("prefix", "") == prefix


def test_the_identity_of_a_table_does_not_depend_on_the_prefix() -> None:
    """A table's digest does not depend on its prefix, which tables of earlier versions lack."""
    rows = {"hash": np.zeros(1, np.int64), "key": BinaryColumn.of([b"a"]), "row": BinaryColumn.of([b""])}
    assert AnnotationHead("x", (), prefix="t").digest(rows) == AnnotationHead("y", ()).digest(rows)
    assert b"prefix" not in AnnotationHead("x", ()).encode()


def test_rows_of_one_hash_are_told_apart(tmp_path: Path) -> None:
    """Rows whose keys have one hash are told apart by the keys."""
    hashes = np.full(3, hash_of(b"b"), np.int64)
    keys = BinaryColumn.of([b"a", b"b", b"c"])
    rows = AnnotationTable(tmp_path, AnnotationHead("x", ()), {"hash": hashes, "key": keys, "row": keys})
    assert [rows.find(key) for key in "abc"] == [-1, 1, -1]


@pytest.mark.parametrize(
    ("keys", "key", "found"),
    [
        (["a/1.jpg", "b/1.jpg"], "b/1.jpg", 1),
        (["a/1.jpg", "b/1.jpg"], "b/1", 1),
        (["a/1.jpg", "b/1.jpg"], "1.jpg", -1),
        (["x/1.jpg", "x/2.jpg"], "2.jpg", 1),
        (["x/1.jpg", "x/2.jpg"], "x/2", 1),
        (["x/1.jpg", "x/2.jpg"], "y/2.jpg", -1),
        (["./1.jpg", "2.png"], "2", 1),
        (["1", "2"], "a/2.jpg", 1),
        (["1.2.840.1", "1.2.840.2"], "1.2.840.2.dcm", 1),
        (["1.jpg", "1.png"], "1", -1),
        (["1.jpg", "1.png"], "1.png", 1),
        (["s3://b/train/a/1.jpg", "s3://b/train/c/1.jpg"], "c/1.jpg", 1),
        (["s3://b/train/a/1.jpg", "s3://b/train/c/1.jpg"], "train/c/1.jpg", 1),
        (["/b/train/a/1.jpg", "/b/train/c/1.jpg"], "c/1", 1),
        (["/a/1.jpg", "/c/1.jpg"], "c/1.jpg", 1),
        (["/1.jpg", "/2.jpg"], "2.jpg", 1),
        (["t/a/1.jpg", "t/c/1.jpg"], "b/1.jpg", -1),
        (["t/c/1.jpg", "t/c/2.jpg"], "c/2.jpg", 1),
        (["a/1.jpg", "t/a/1.jpg"], "a/1.jpg", 0),
        (["caf\u00e9/1.jpg", "b/1.jpg"], "cafe\u0301/1.jpg", 0),
        (["cafe\u0301.jpg", "b.jpg"], "caf\u00e9", 0),
    ],
)
def test_keys_are_compared_as_far_as_they_are_written(tmp_path: Path, keys: list[str], key: str, found: int) -> None:
    """Keys are compared by folder and extension where both sides have them; ambiguous ones are not found."""
    joiner = table(tmp_path, "x.jsonl", lines([{"file_name": each, "n": n} for n, each in enumerate(keys)]))
    row = joiner.table.find(key)
    assert (joiner.values(key, ())["n"] if row >= 0 else -1) == found
