"""Folder, the format of files that are samples, and which files `chooser` leaves out or notes; by names alone."""

from __future__ import annotations

import pytest

from streamer.errors import ConfigError
from streamer.formats.base import Facts, SampleName, Source, Span
from streamer.formats.detect import chooser
from streamer.formats.folder import Folder
from streamer.formats.names import extension, field_name
from streamer.manifest.model import ObjectRecord


def test_an_object_is_a_sample():
    """The index of a folder makes each object one span, an object of 0 bytes too, and reads none of it."""
    assert list(Folder().index(Source(ObjectRecord("s3://b/a.jpg", 17, "")), Facts())) == [Span(0, 17)]
    assert list(Folder().index(Source(ObjectRecord("s3://b/a.jpg", 0, "")), Facts())) == [Span(0, 0)]


def test_open_names_the_field_by_extension():
    """A file's sample has its name as key and one field, named by the extension, whose content is not copied."""
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
    """A file's extension is its last one in lower case, with that before .gz, or "bin" where there is none."""
    assert extension(key) == name


@pytest.mark.parametrize(
    ("name", "unified"), [("JPEG", "jpg"), ("seg.jpeg", "seg.jpg"), ("xjpeg", "xjpeg"), ("a.b", "a.b")]
)
def test_field_name(name, unified):
    """Field names are lower case, and jpg stands for jpeg at their end."""
    assert field_name(name) == unified


@pytest.mark.parametrize(("key", "taken"), [("a/b.jpg", True), ("a/b", True), ("a/", False), ("a/.DS_Store", False)])
def test_accepts(key, taken):
    """Hidden files and folder markers are not samples of a folder."""
    assert Folder().accepts(key) is taken


CLASSES = ["cats/1.jpg", "cats/2.JPEG", "dogs/3.png", "dogs/4.jpg"]


def taken(keys: list[str], name: str = "auto", extensions: list[str] | None = None) -> tuple[list[str], list[str]]:
    """Returns the samples among these files, and the notes."""
    notes: list[str] = []
    chosen = chooser(name, extensions=extensions, on_note=notes.append)(keys)
    return [key for key in keys if chosen.accepts(key)], notes


@pytest.mark.parametrize("name", ["auto", "folder"])
def test_in_class_folders_images_are_samples(name):
    """In class folders all kinds of images are samples; one note counts the other files by extension."""
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
    """Files with the given extensions are the samples, few or beside tars; an unknown extension is an error."""
    keys = [*CLASSES, "a/1.npy", "a/2.txt.gz", "b/LICENSE", "x.tar"]
    assert taken(keys, extensions=["npy"]) == (["a/1.npy"], [])
    assert taken(keys, extensions=["jpg", "txt.gz"])[0] == ["cats/1.jpg", "cats/2.JPEG", "dogs/4.jpg", "a/2.txt.gz"]
    with pytest.raises(ConfigError, match=r"extensions=jgp: none of the 4 files has one \(3 \.jpg, 1 \.png\)"):
        taken(CLASSES, extensions=["jgp"])


def test_files_of_one_name_are_told_of():
    """A note says that files of one name are a sample each, and how `streamer.pack` makes one of them."""
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
    """A note says that folders named for images and masks are read as classes; folders of classes get none."""
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
    """A note names folders that belong together in VOC, Cityscapes, mmsegmentation, Carvana and KITTI."""
    _, notes = taken(keys)
    assert any(names in note and "each file a sample of its own" in note for note in notes)


def test_images_of_phones_count_as_images() -> None:
    """HEIC and HEIF files count as images, so that neither they nor the JPEGs beside them are left out."""
    keys = ["cat/1.HEIC", "cat/2.HEIC", "cat/3.heif", "cat/4.jpg", "dog/5.jpg", "dog/notes.txt"]
    assert taken(keys)[0] == keys[:-1]
