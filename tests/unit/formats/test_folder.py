from __future__ import annotations

import pytest

from streamer.errors import ConfigError
from streamer.formats.base import Facts, SampleName, Source, Span
from streamer.formats.detect import chooser
from streamer.formats.folder import Folder
from streamer.formats.names import extension, field_name
from streamer.manifest.model import ObjectRecord


def test_an_object_is_a_sample():
    """Nothing is asked for, the whole object is the span, 0 bytes too."""
    assert list(Folder().index(Source(ObjectRecord("s3://b/a.jpg", 17, "")), Facts())) == [Span(0, 17)]
    assert list(Folder().index(Source(ObjectRecord("s3://b/a.jpg", 0, "")), Facts())) == [Span(0, 0)]


def test_open_names_the_field_by_extension():
    """The key is the path below the url; the field is a view."""
    content = memoryview(b"123")
    key, fields = Folder().open(content, SampleName("n01/a.b.JPEG", 3))
    assert (key, [(f.name, f.content) for f in fields]) == ("n01/a.b.JPEG", [("jpg", content)])


@pytest.mark.parametrize(
    ("key", "name"),
    [
        *(("a/b", "bin"), ("a.x/b", "bin"), ("a/b.", "bin"), ("a/.b", "bin")),
        *(("a/b.JPEG", "jpg"), ("a/b.Jpg", "jpg"), ("b.c.PNG", "png"), ("a/jpeg", "bin")),
        *(("b.tar.GZ", "tar.gz"), ("a/b.txt.gz", "txt.gz"), ("a/v1.5.gz", "gz"), ("a/b.gz", "gz"), ("a/.txt.gz", "gz")),
    ],
)
def test_extension(key, name):
    """The last extension counts, with one before .gz; a name without one is "bin"."""
    assert extension(key) == name


@pytest.mark.parametrize(
    ("name", "unified"), [("JPEG", "jpg"), ("seg.jpeg", "seg.jpg"), ("xjpeg", "xjpeg"), ("a.b", "a.b")]
)
def test_field_name(name, unified):
    """Lower case, and jpg for jpeg."""
    assert field_name(name) == unified


@pytest.mark.parametrize(("key", "taken"), [("a/b.jpg", True), ("a/b", True), ("a/", False), ("a/.DS_Store", False)])
def test_accepts(key, taken):
    """Hidden files and folder markers are not samples."""
    assert Folder().accepts(key) is taken


CLASSES = ["cats/1.jpg", "cats/2.JPEG", "dogs/3.png", "dogs/4.jpg"]


def taken(keys: list[str], name: str = "auto", extensions: list[str] | None = None) -> tuple[list[str], list[str]]:
    """The samples among these files, and the notes."""
    notes: list[str] = []
    chosen = chooser(name, extensions=extensions, on_note=notes.append)(keys)
    return [key for key in keys if chosen.accepts(key)], notes


@pytest.mark.parametrize("name", ["auto", "folder"])
def test_in_class_folders_images_are_samples(name):
    """All kinds of them together; the rest is counted in one line."""
    strays = ["README.md", "labels.csv", "LICENSE", "dogs/Thumbs.db", "cats/1.txt", "cats/2.txt", "dogs/.DS_Store"]
    assert taken([*CLASSES, *strays], name) == (
        CLASSES,
        [
            "5 of 9 files are not samples (2 .txt, 1 .md, 1 .csv, 1 without extension): "
            "those in the class folders are .jpg, .png; Folder(extensions=...) chooses others"
        ],
    )
    assert taken(CLASSES) == (CLASSES, [])


@pytest.mark.parametrize(
    ("keys", "samples"),
    [
        ([*CLASSES, *(f"cats/{i}.{kind}.json" for i in range(5) for kind in "ab")], CLASSES),
        (["a/cover.jpg", "a/1.wav", "a/2.flac", "b/3.wav"], ["a/1.wav", "a/2.flac", "b/3.wav"]),
        (["pos/1.txt", "pos/2.txt", "neg/3.txt", "bow.feat"], ["pos/1.txt", "pos/2.txt", "neg/3.txt"]),
        (["a/1.npy", "a/2.npy", "a/preview.png"], ["a/1.npy", "a/2.npy"]),
        (["a/1.npy", "a/1.png"], ["a/1.png"]),
        (["a/1.json.gz", "a/2.json.gz", "a/x.csv"], ["a/1.json.gz", "a/2.json.gz"]),
        (["1.npy", "2.npy", "meta/labels.csv"], ["1.npy", "2.npy", "meta/labels.csv"]),
        (["1.jpg", "2.jpg", "labels.csv"], ["1.jpg", "2.jpg", "labels.csv"]),
    ],
)
def test_the_commonest_files_of_class_folders_are_samples(keys, samples):
    """Documents do not outnumber images, audio files or videos; without class folders all files are samples."""
    assert taken(keys)[0] == taken(keys[::-1])[0][::-1] == samples


def test_extensions_say_which_files_are_samples():
    """Whatever is there in which number, also beside tars; one that no file has is an error with those there are."""
    keys = [*CLASSES, "a/1.npy", "a/2.txt.gz", "b/LICENSE", "x.tar"]
    assert taken(keys, extensions=["npy"]) == (["a/1.npy"], [])
    assert taken(keys, extensions=["jpg", "txt.gz"])[0] == ["cats/1.jpg", "cats/2.JPEG", "dogs/4.jpg", "a/2.txt.gz"]
    with pytest.raises(ConfigError, match=r"extensions=jgp: none of the 4 files has one \(3 \.jpg, 1 \.png\)"):
        taken(CLASSES, extensions=["jgp"])


def test_files_of_one_name_are_told_of():
    """An image with its text and its labels is three samples; how they become one is said."""
    keys = [f"{number}.{ending}" for number in range(3) for ending in ("jpg", "txt", "json")]
    samples, notes = taken([*keys, "README.md"])
    assert len(samples) == 10
    assert len(notes) == 1
    assert notes[0].startswith("each of 0.jpg, 0.json, 0.txt, as of all files of one name, is a sample of its own here")
    assert "streamer.pack, or tar --sort=name" in notes[0]
    for others in (["1.jpg", "2.jpg", "2.txt", "3.jpg", "4.jpg"], ["1.jpg", "2.png", "labels.csv"], ["1.jpg", "2.jpg"]):
        assert taken(others)[1] == []


@pytest.mark.parametrize(
    ("folders", "are_pairs"), [(("images", "masks"), True), (("imgs", "labels"), True), (("cats", "dogs"), False)]
)
def test_folders_of_images_and_masks_are_told_of(folders, are_pairs):
    """They would be classes; folders of classes have files of one name, too."""
    keys = [f"{folder}/{number}.png" for folder in folders for number in range(3)]
    samples, notes = taken(keys)
    assert samples == keys
    assert [note.partition(" here")[0] for note in notes] == [f"{folders[0]}/, {folders[1]}/ are classes"] * are_pairs


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        (["VOC2012/JPEGImages/1.jpg", "VOC2012/SegmentationClass/1.png", "VOC2012/Annotations/1.xml"], "VOC2012/"),
        (["leftImg8bit/aachen/1.png", "gtFine/aachen/1.png"], "gtFine/, leftImg8bit/ are classes here"),
        (["img_dir/1.jpg", "ann_dir/1.png"], "ann_dir/, img_dir/ are classes here"),
        (["office_rgb/1.png", "office_depth/1.png"], "office_depth/, office_rgb/ are classes here"),
        (["train_images/1.jpg", "train_masks/1.png"], "train_images/, train_masks/ are classes here"),
        (["training/image_2/1.png", "training/label_2/1.txt"], "training/image_2/, training/label_2/ hold files that"),
    ],
)
def test_folders_that_belong_together_are_told(keys: list[str], names: str) -> None:
    """VOC, Cityscapes, mmsegmentation, Carvana, KITTI: by the words of their names, at any depth."""
    _, notes = taken(keys)
    assert any(names in note and "each file a sample of its own" in note for note in notes)


def test_images_of_phones_count_as_images() -> None:
    """HEIC beside JPEG: the fewer are not left out."""
    keys = ["cat/1.HEIC", "cat/2.HEIC", "cat/3.heif", "cat/4.jpg", "dog/5.jpg", "dog/notes.txt"]
    assert taken(keys)[0] == keys[:-1]
