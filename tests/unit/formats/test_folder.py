from __future__ import annotations

import pytest

from streamer.formats.base import SampleName, Span
from streamer.formats.folder import Folder
from streamer.formats.names import extension, field_name
from streamer.manifest.model import ObjectRecord


def test_an_object_is_a_sample():
    """Nothing is asked for, the whole object is the span, 0 bytes too."""
    assert list(Folder().index(ObjectRecord("s3://b/a.jpg", 17, ""))) == [Span(0, 17)]
    assert list(Folder().index(ObjectRecord("s3://b/a.jpg", 0, ""))) == [Span(0, 0)]


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
    """Hidden files and folder markers are no samples."""
    assert Folder().accepts(key) is taken
