"""Which format the names of objects stand for, which are refused, and the options and table of the built-in formats."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import streamer.formats
from streamer.errors import ConfigError
from streamer.formats import HDF5, Audio, LeRobot, Parquet, RawArrays, Video
from streamer.formats.base import Format
from streamer.formats.detect import chooser, detect
from streamer.formats.folder import Folder
from streamer.formats.registry import find_format


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        (["a/0.tar", "a/1.TAR"], "webdataset"),
        (["a/0.tar.gz"], "webdataset"),
        (["n01/a.jpg", "n01/b.jpg"], "folder"),
        (["a.tar", ".DS_Store", "empty/"], "webdataset"),
        (["a.tar", "a.tar.idx", "b.tar", "b.idx"], "webdataset"),
        ([], "folder"),
        (["train.tfrecord-00000-of-00010", "train.tfrecord-00001-of-00010"], "tfrecord"),
        (["a.tfrecords.gz", "features.json"], "tfrecord"),
        (["train-00000-of-01024", "train-00001-of-01024"], "tfrecord"),
        (["a.tfrecord", "a.idx", "README.md"], "tfrecord"),
        (["train.rec", "train.idx", "train.lst"], "recordio"),
        (["index.json", "shard.00000.mds", "shard.00001.mds.zstd"], "mds"),
        (["a/index.json", "a/shard.00000.mds", "b/index.json", "b/shard.00000.mds", "README.md"], "mds"),
        (["index.json", "chunk-0-0.bin", "chunk-1-12.zstd.bin", "chunk-2-0.zstd:3.bin"], "litdata"),
        (["a.jsonl", "b.jsonl", "README.md"], "jsonl"),
        (["README.md", "dataset_infos.json", ".gitattributes", "data/train-00000-of-00002.parquet"], "parquet"),
        (["_SUCCESS", "part-00000-aaaa.snappy.parquet"], "parquet"),
        (["a.jpg", "train.jsonl", "test.jsonl"], "folder"),
        ([".zgroup", "x/.zarray", "x/.zattrs", "x/0.0", "x/0.1", "x/1.0", "x/1.1", "README.md"], "zarr"),
        (["meta/info.json", "meta/tasks.parquet", "data/a.parquet", "videos/a.mp4", "videos/b.mp4"], "lerobot"),
        (["meta/info.json", "meta/tasks.jsonl", "meta/episodes.jsonl", "data/a.parquet", "videos/a.mp4"], "lerobot"),
        (["zarr.json", "x/zarr.json", "x/c/0/0", "x/c/0/1", "x/c/1/0"], "zarr"),
        (["a.HDF5", "b.hdf5", "c.h5", "LICENSE"], "hdf5"),
        (["log.1", "log.2", "1.0", "x.h5"], "folder"),
        (["dataset_info.json", "state.json", "data-00000-of-00001.arrow"], "arrow"),
        (["data.mdb", "lock.mdb"], "lmdb"),
        (["a.zip", "b.zip"], "zip"),
        (["corpus.bin", "corpus.idx", "README.md"], "tokens"),
        (["a.ipc", "b.ipc"], "arrow"),
        (["en/c4-train.00000-of-01024.json.gz", "en/c4-train.00001-of-01024.json.gz", "README.md"], "jsonl"),
        (["1.txt", "2.txt", "3.txt", "labels.csv"], "folder"),
        (["1.jpg", "labels.csv", "more.csv"], "folder"),
        (["a.json", "b.json"], "folder"),
        (["1.json", "2.json", "attributes.json"], "folder"),
    ],
)
def test_detect(keys, name):
    """`detect` tells the format by the names' endings; hidden files, documents and index files do not count."""
    assert detect(keys) == name
    assert chooser("auto")(keys).name == name


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("NetCDF", ["era5-2020.nc"]),
        ("Lance", ["_versions/1.manifest", "data/a.lance", "data/b.lance"]),
        ("FFCV", ["train.beton"]),
        ("CSV", ["train.csv", "test.csv", "README.md", "LICENSE"]),
        ("CSV", ["train.tsv.gz", "schema.json"]),
        (r"IDX \(MNIST\)", ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"]),
        (r"IDX \(MNIST\)", ["train-images.idx3-ubyte", "train-labels.idx1-ubyte"]),
        ("N5", ["attributes.json", "raw/attributes.json", "raw/0/0/0", "raw/0/0/1", "raw/1/0/0"]),
        ("ArrayRecord", ["ds-train.array_record-00000-of-00002", "ds-train.array_record-00001-of-00002"]),
        ("ArrayRecord", ["ds.array_record"]),
    ],
)
def test_another_kind_of_dataset_is_named(kind, keys):
    """A dataset in a format that streamer lacks is refused by its name; format="folder" takes its files."""
    for order in (keys, keys[::-1]):
        with pytest.raises(
            ConfigError, match=rf"this is a dataset in {kind}.*streamer (does not read|reads no)"
        ) as caught:
            chooser("auto")(order)
    assert caught.value.details["field"] == "format"
    assert chooser("folder")(keys).name == "folder"


SPLITS = [
    (["data/train-00000-of-00002.parquet", "data/test-00000-of-00001.parquet"], "test-*, train-*"),
    (["train/0.parquet", "test/0.parquet", "README.md"], "test/, train/"),
    (["train/cats/1.jpg", "train/dogs/2.jpg", "val/cats/3.jpg"], "train/, val/"),
    (["cats/Train/1.jpg", "cats/Test/2.jpg"], "Test/, Train/"),
    (["train.jsonl", "dev.jsonl"], r"dev\.\*, train\.\*"),
    (["train_0.tar", "validation_0.tar"], r"train_\*, validation_\*"),
    (["train2017/1.jpg", "val2017/2.jpg", "annotations/x.json"], "train2017/, val2017/"),
    (["train_images/a/1.jpg", "test_images/a/2.jpg"], "test_images/, train_images/"),
    (["training_set/a/1.jpg", "test_set/a/2.jpg"], "test_set/, training_set/"),
    (["trainA/1.jpg", "trainB/1.jpg", "testA/2.jpg", "testB/2.jpg"], "testA/, testB/, trainA/, trainB/"),
    (["train_256/a/1.jpg", "val_256/a/2.jpg"], "train_256/, val_256/"),
    (["x/imagenet-train/a/1.jpg", "x/imagenet-val/a/2.jpg"], "imagenet-train/, imagenet-val/"),
    (["split=train/0.parquet", "split=test/0.parquet"], "split=test/, split=train/"),
    (["coco-train-0.tar", "coco-train-1.tar", "coco-val-0.tar"], r"coco-train-\*.tar, coco-val-\*.tar"),
    (["train2017.zip", "val2017.zip"], r"train\*.zip, val\*.zip"),
    (["leftImg8bit/train/a/1.png", "leftImg8bit/val/a/1.png", "gtFine/train/a/1.png"], "train/, val/"),
]


@pytest.mark.parametrize(("keys", "names"), SPLITS)
def test_splits_are_neither_one_dataset_nor_classes(keys, names):
    """Splits below one url are refused with their names; to name the format reads them as one, with a note."""
    for order in (keys, keys[::-1]):
        with pytest.raises(ConfigError, match=rf"below one url are the splits {names.replace('-*', '-[*]')}; name the"):
            chooser("auto")(order)
    notes: list[str] = []
    chooser(detect(keys), on_note=notes.append)(keys)
    assert any("they are one dataset here" in note for note in notes)


@pytest.mark.parametrize(
    "keys",
    [
        ["train/cats/1.jpg", "training/dogs/2.jpg"],
        ["val/1.jpg", "test/2.jpg"],
        ["images/1.jpg", "images/2.jpg", "train.txt", "val.txt"],
        ["trains/1.jpg", "tests/2.jpg"],
        ["a/train.jpg", "a/test.jpg"],
        ["train_station/1.jpg", "test_tube/2.jpg", "cat/1.jpg", "dog/1.jpg"],
        ["train2017/1.jpg", "train2014/2.jpg"],
        ["constraint/1.jpg", "contest/1.jpg"],
        ["detrain-0.tar", "latest-0.tar"],
        ["train-0.tar", "train-1.tar"],
    ],
)
def test_what_are_no_splits(keys):
    """Names that resemble splits, lists beside the data, and splits without one for training are no splits."""
    notes: list[str] = []
    chooser("auto", on_note=notes.append)(keys)
    assert not any("splits" in note for note in notes)


@pytest.mark.parametrize("name", ["train.json", "train.json.gz"])
def test_a_single_json_document_is_no_dataset(name):
    """A single .json file is refused by detection, and taken where the format is named as folder or jsonl."""
    with pytest.raises(ConfigError, match=rf"{name} is one JSON document, or lines.*format='jsonl'"):
        detect([name])
    assert chooser("folder")([name]).name == "folder"
    assert chooser("jsonl")([name]).name == "jsonl"


@pytest.mark.parametrize(
    "keys",
    [
        ["cats/1.jpg", "dogs/2.jpg", "metadata.parquet"],
        ["1.npy", "2.npy", "index.json", "labels.h5"],
        ["a/chunk-1.bin", "a/chunk-2.bin"],
        ["a/x.zip", "a/1.wav", "a/2.wav"],
    ],
)
def test_one_such_file_beside_data_is_none(keys):
    """A single file of another kind beside data of a folder does not change the detected format."""
    assert chooser("auto")(keys).name == "folder"


def test_a_mixture_says_what_was_found():
    """A mixture of tars and other files of data is refused, and the error counts both."""
    with pytest.raises(ConfigError, match=r"2 tars and other files \(2 \.jpg, 1 \.h5\)") as caught:
        detect(["a.tar", "b.tar", "a.jpg", "b.jpg", "LICENSE", "x.h5", "a.json"])
    assert (caught.value.details["tars"], caught.value.details["others"]) == (2, 3)


@pytest.mark.parametrize(
    "beside",
    [
        ["README.md", ".gitattributes", "LICENSE", "_SUCCESS", "dataset_info.json"],
        ["a.parquet", "a_stats.json", "b.parquet", "b_stats.json"],
        ["a.json", "b.json", "a.tar.md5", "b.tar.sha256", "MD5SUMS", "checksums.md5"],
        [".nv-meta/dataset.yaml", ".nv-meta/index.sqlite", ".git/HEAD", ".dvc/config", "a.tar.dvc", "b.tar.dvc"],
        ["x.jsonl", "y.jsonl", "z.jsonl", "labels.csv"],
    ],
)
def test_documents_and_sidecars_beside_tars(beside: list[str]):
    """Tars beside documents and sidecars are WebDataset; a note counts the files that are not samples."""
    notes: list[str] = []
    for keys in (["a.tar", "b.tar", *beside], [*beside, "b.tar", "a.tar"]):
        chosen = chooser("auto", on_note=notes.append)(keys)
        assert chosen.name == "webdataset"
        assert sorted(filter(chosen.accepts, keys)) == ["a.tar", "b.tar"]
    count = sum(not key.startswith(".") for key in beside)
    assert notes[0].startswith(f"{count} files beside the tars are not samples (")
    assert len(notes) == 2


def test_other_files_among_those_of_a_format():
    """Zarr or TFRecord objects with data of another kind among them are refused, and both are counted."""
    with pytest.raises(ConfigError, match=r"zarr \(1 such objects, the first is \.zarray\) and 1 other files"):
        detect([".zarray", "0.0", "0.1", "a.jpg"])
    with pytest.raises(ConfigError, match=r"TFRecord \(3 such objects, the first is a\.tfrecord\) and 1 other files"):
        detect(["a.tfrecord", "b.tfrecord", "c.tfrecord", "a.jpg"])


def test_a_named_format_is_taken_as_given():
    """A format that the user names is taken without detection."""
    assert chooser("folder")(["a.tar"]) == Folder()


def test_an_unknown_format_lists_the_known():
    """The error for an unknown format's name lists the known ones and points to packages with entry points."""
    with pytest.raises(ConfigError, match=r"folder, .*webdataset, .*auto, and those of packages with an entry point"):
        find_format("tfrecords")
    with pytest.raises(ConfigError, match="tfrecords"):
        chooser("tfrecords")


def test_an_unknown_option_is_named():
    """`find_format` refuses an unknown option by its name; options come as JSON from other processes."""
    with pytest.raises(ConfigError, match=r"format 'webdataset': .*unknown field `columns`"):
        find_format("webdataset", {"columns": ["a"]})


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Video(16, seconds_between_frames=math.nan), "Video: seconds_between_frames=nan"),
        (lambda: Audio(math.inf), "Audio: seconds=inf"),
        (
            lambda: LeRobot(delta_timestamps={"action": [0.0, math.nan]}),
            r"LeRobot: delta_timestamps=\{'action': \[0\.0, nan\]\}",
        ),
    ],
)
def test_options_are_finite(make: Callable[[], Format], named: str):
    """Options of formats that are NaN or infinite are refused; JSON would turn them into null, often the default."""
    with pytest.raises(ConfigError, match=f"{named}: give finite numbers"):
        make()


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: HDF5(datasets=["image"]), r"HDF5: datasets=\['image'\]: Expected `object`, got `array`"),
        (lambda: HDF5(datasets={"a": 1}), r"HDF5: datasets=\{'a': 1\}: Expected `str`, got `int`"),
        (lambda: RawArrays("<f4", 3), "RawArrays: shape=3: Expected `array`, got `int`"),
        (lambda: Parquet(columns="image"), "Parquet: columns='image': Expected `array.*`, got `str`"),
    ],
)
def test_options_of_another_type_are_refused(make: Callable[[], Format], named: str):
    """A value of another type than its option raises ConfigError where the format is made, with option and types."""
    with pytest.raises(ConfigError, match=named):
        make()


def test_options_of_other_types():
    """Paths, ranges and numpy's numbers become JSON values in a format's options; other types are refused."""
    assert Video(np.int64(8), segments=Path("a.csv")).options == {"num_frames_per_clip": 8, "segments": "a.csv"}
    windows = LeRobot(delta_timestamps={"action": np.arange(3) / 10}, episodes=range(2))
    assert windows.options == {"delta_timestamps": {"action": [0.0, 0.1, 0.2]}, "episodes": [0, 1]}
    assert hash(windows) == hash(find_format("lerobot", windows.options))
    with pytest.raises(ConfigError, match=r"Video: segments=<object .*>: options are .*, not object"):
        _ = Video(segments=object()).options


def test_what_streamer_keeps_beside_a_dataset_is_no_part_of_it() -> None:
    """Files below a .streamer folder, at any depth, count neither for detection nor as samples."""
    from streamer.formats.detect import detect
    from streamer.formats.folder import Folder

    beside = [".streamer/root.json", ".streamer/pack/1a/000000.json", "deep/.streamer/objects-00000.arrows"]
    assert detect(["a.tar", *beside]) == "webdataset"
    assert [key for key in beside if Folder().accepts(key)] == []
    assert Folder().accepts("streamer/root.json")


@pytest.mark.parametrize("name", streamer.formats.BUILT_IN)
def test_a_row_of_the_table_says_where_the_format_is(name: str) -> None:
    """Each name in BUILT_IN finds the class that its row names, without options, and the package exports it."""
    found = find_format(name)
    assert found.name == name
    assert type(found) is getattr(streamer.formats, streamer.formats.BUILT_IN[name].class_name)


def test_type_checkers_see_the_classes_of_the_table() -> None:
    """The imports that type checkers see in streamer.formats are the classes that its `__getattr__` gives."""
    source = ast.parse(Path(streamer.formats.__file__).read_text())
    imports = [node for node in ast.walk(source) if isinstance(node, ast.ImportFrom) and node.level == 0]
    static = {alias.name: node.module for node in imports for alias in node.names if alias.asname}
    assert sorted(static) == dir(streamer.formats)
    assert all(getattr(streamer.formats, name).__module__ == module for name, module in static.items())
