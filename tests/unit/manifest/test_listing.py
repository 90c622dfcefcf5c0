"""Listings of a dataset's objects: keys, classes, labels and order, over a store in memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streamer.errors import ConfigError, ManifestError
from streamer.formats import Folder, detect
from streamer.formats.registry import find_format
from streamer.indexing.build import build
from streamer.indexing.listed_rows import list_objects
from streamer.manifest.model import ObjectRecord
from streamer.manifest.validation import open_and_verify
from streamer.store.local_store import LocalStore


async def listed(store, urls: list[str], names: list[str], kind: str = "auto"):
    objects = dict.fromkeys(names, b"123")
    found = await list_objects(urls, store(objects), detect.chooser(kind), 4)
    return found.listing, found.indexer


async def test_keys_and_classes_below_a_prefix(store):
    """Keys begin below the url, sorted; a class is the first folder, as in torchvision's ImageFolder."""
    names = ["s3://b/t/dog/x/2.jpg", "s3://b/t/cat/1.jpg", "s3://b/t/loose.jpg"]
    listing, _ = await listed(store, ["s3://b/t/"], names)
    assert (listing.base, listing.keys) == ("s3://b/t/", [b"cat/1.jpg", b"dog/x/2.jpg", b"loose.jpg"])
    assert (listing.classes, listing.labels.tolist()) == (("cat", "dog"), [0, 1, -1])
    assert listing.record(0) == ObjectRecord("s3://b/t/cat/1.jpg", 3, listing.versions[0].decode())
    assert listing.url(1) == b"s3://b/t/dog/x/2.jpg"


@pytest.mark.parametrize("url", ["s3://b/t/", "s3://b/t"])
async def test_one_class_folder_keeps_its_name(store, url):
    """A single class keeps its name, since keys begin below the url and not below what objects have in common."""
    listing, _ = await listed(store, [url], ["s3://b/t/cat/1.jpg", "s3://b/t/cat/2.jpg"])
    assert (listing.base, listing.classes) == ("s3://b/t/", ("cat",))


async def test_several_urls_share_classes(store):
    """Labels are numbered over all urls, and keys begin below what the urls have in common."""
    names = ["s3://b/val/cat/1.jpg", "s3://b/train/dog/1.jpg", "s3://b/train/cat/1.jpg"]
    listing, _ = await listed(store, ["s3://b/val/", "s3://b/train/"], names)
    assert listing.base == "s3://b/"
    assert listing.keys == [b"val/cat/1.jpg", b"train/cat/1.jpg", b"train/dog/1.jpg"]
    assert (listing.classes, listing.labels.tolist()) == (("cat", "dog"), [0, 0, 1])


async def test_urls_without_anything_in_common(store):
    """Urls of two buckets have an empty base, and classes are still the folders below each url."""
    listing, _ = await listed(store, ["s3://a/x/", "s3://b/y/"], ["s3://a/x/cat/1.jpg", "s3://b/y/dog/1.jpg"])
    assert (listing.base, listing.classes) == ("", ("cat", "dog"))
    assert listing.record(1).url == "s3://b/y/dog/1.jpg"


async def test_tars_keep_the_order_of_the_urls(store):
    """Containers named one by one keep the order of their urls."""
    urls = ["s3://b/2.tar", "s3://b/1.tar"]
    listing, chosen = await listed(store, urls, urls)
    assert [listing.record(i).url for i in (0, 1)] == urls
    assert chosen.name == "webdataset"


@pytest.mark.parametrize("scheme", ["", "file://"])
async def test_a_local_path_may_be_relative(store, tmp_path, monkeypatch, scheme):
    """A relative path lists absolute ones, and classes are still the folders below what the user named."""
    monkeypatch.chdir(tmp_path)
    absolute = f"{scheme}{Path.cwd()}/data"

    class Local(store):
        def list(self, url):
            return super().list("")

    names = dict.fromkeys([f"{absolute}/cat/1.jpg", f"{absolute}/cat/2.jpg"], b"1")
    listing = (await list_objects(["data"], Local(names), detect.chooser("auto"), 1)).listing
    assert (listing.base, listing.classes) == (f"{absolute}/", ("cat",))


async def test_what_the_format_does_not_take_is_left_out(store):
    """Hidden files, markers of folders and files that the format does not take are left out of the listing."""
    listing, _ = await listed(store, ["s3://b/"], ["s3://b/.x", "s3://b/c/", "s3://b/c/1.jpg"])
    assert listing.keys == [b"c/1.jpg"]
    listing, _ = await listed(store, ["s3://b/"], ["s3://b/a.tar", "s3://b/a.json"], "webdataset")
    assert listing.keys == [b"a.tar"]


async def test_an_object_named_by_its_user_is_taken(store):
    """An object that the url names is taken, whatever its name."""
    listing, _ = await listed(store, ["s3://b/shard-0"], ["s3://b/shard-0"], "webdataset")
    assert (listing.base, listing.keys) == ("s3://b/", [b"shard-0"])


async def test_an_empty_prefix_says_so(store):
    """A prefix without objects raises ManifestError with the url."""
    with pytest.raises(ManifestError, match="no objects below s3://b/nothing/; is the prefix right") as caught:
        await listed(store, ["s3://b/nothing/"], ["s3://b/x.jpg"])
    assert caught.value.details == {"url": "s3://b/nothing/"}


async def test_a_prefix_without_fitting_objects(store):
    """A prefix without objects of the format raises ManifestError with format, number and an example."""
    with pytest.raises(ManifestError, match=r"none of the 2 objects below s3://b/ fits format 'webdataset'.*a\.jpg"):
        await listed(store, ["s3://b/"], ["s3://b/a.jpg", "s3://b/b.jpg"], "webdataset")


async def test_a_mixture_is_a_config_error(store):
    """Tars and other files together, over all urls, raise ConfigError."""
    with pytest.raises(ConfigError, match="1 tars and other files"):
        await listed(store, ["s3://b/x/", "s3://b/y/"], ["s3://b/x/a.tar", "s3://b/y/a.jpg"])


async def test_an_object_twice_is_an_error(store):
    """An object that two urls name raises ManifestError, since its samples would be trained on twice."""
    with pytest.raises(ManifestError, match=r"s3://b/x/a\.jpg is named by more than one of the 2 urls"):
        await listed(store, ["s3://b/x/", "s3://b/"], ["s3://b/x/a.jpg", "s3://b/b.jpg"])


async def test_classes_whose_names_are_not_utf_8(tmp_path: Path):
    """Class folders whose names are not UTF-8 have the names of `os.listdir`, in the written manifest as well."""
    names = sorted(["cat", os.fsdecode("数据".encode("gbk")), "数据"])
    for name in names:
        (tmp_path / "d" / name).mkdir(parents=True)
        (tmp_path / "d" / name / "0.jpg").write_bytes(name.encode("utf-8", "surrogateescape"))
    manifest = await build(
        str(tmp_path / "d"),
        tmp_path / "manifests",
        lister=LocalStore(),
        reader=None,  # type: ignore[arg-type]
        choose_format=detect.chooser("auto"),
    )
    assert list(manifest.classes) == names == sorted(os.listdir(tmp_path / "d"))
    again = open_and_verify(manifest.path)
    for ordinal in range(3):
        found = again.name(ordinal)
        assert found.object_key == f"{names[found.label]}/0.jpg"


async def test_a_url_that_is_not_utf_8_is_refused(store):
    """A url that is not UTF-8 raises ConfigError, since urls are written and sent."""
    with pytest.raises(ConfigError, match=r"'/d/\\udcff' is not UTF-8; name the folder above it by a pattern"):
        await listed(store, ["/d/\udcff"], ["/d/\udcff/1.jpg"])


@pytest.mark.parametrize("extensions", [None, ["jpg"]])
async def test_classes_that_are_given(store, extensions: list[str] | None):
    """Given classes fix the labels, so a validation set has those of the training set; other folders are an error."""
    names = ["s3://b/val/dog/1.jpg", "s3://b/val/bird/1.jpg", "s3://b/val/README.md"]
    options = {"classes": ["bird", "cat", "dog"]}
    for choose in (
        detect.chooser("folder", options),
        detect.chooser("auto", options, extensions=extensions),
    ):
        found = await list_objects(["s3://b/val/"], store(dict.fromkeys(names, b"1")), choose, 4)
        assert found.listing.keys == [b"bird/1.jpg", b"dog/1.jpg"]
        assert (found.listing.classes, found.listing.labels.tolist()) == (("bird", "cat", "dog"), [0, 2])
        assert find_format("folder", found.indexer.options).class_names == ("bird", "cat", "dog")
    strange = detect.chooser("folder", {"classes": ["bird", "cat"]})
    with pytest.raises(ConfigError, match="1 folders are none of the 2 given classes, the first is 'dog'"):
        await list_objects(["s3://b/val/"], store(dict.fromkeys(names, b"1")), strange, 4)


@pytest.mark.parametrize("classes", ["ab", [], [1], ["a", "a"], 3])
def test_classes_that_are_none(classes: object):
    """Classes that are not a list of distinct names raise ConfigError."""
    with pytest.raises(ConfigError, match="classes="):
        Folder(classes=classes)  # type: ignore[arg-type]


async def test_an_object_that_is_listed_twice_is_refused():
    """An object that comes twice in one listing raises ManifestError, as with pages of a store that overlap.
    (Its samples came twice, without a word.)"""
    records = [ObjectRecord(f"s3://b/t/{number}.jpg", 3, "v") for number in range(6)]

    class Overlapping:
        async def list(self, url):
            yield records[:4]
            yield records[3:]

    with pytest.raises(ManifestError, match=r"t/3.jpg comes twice in the listing of s3://b/t/: the pages"):
        await list_objects(["s3://b/t/"], Overlapping(), detect.chooser("auto"), 1)
