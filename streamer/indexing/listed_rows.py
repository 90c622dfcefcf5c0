"""Lists the objects of a dataset's urls, in an order that does not depend on the store's, and chooses their format.

Used by `indexing/build.py` and `shards/finish.py`; `Listing` is what the other modules of `indexing/` work on.
"""

from __future__ import annotations

import asyncio
import os
from array import array
from collections.abc import Callable, Sequence
from itertools import pairwise, takewhile

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.base.concurrency import map_concurrently
from streamer.base.sorting import sort_names, sort_places
from streamer.errors import ConfigError, ManifestError, describe_undecodable
from streamer.manifest.beside import is_beside, is_hidden, is_hidden_folder
from streamer.manifest.columns import decode_text, encode_text, is_utf_8
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import ChooseFormat, Indexer, Lister

_GLOB = "*?["
# Returns, for a url, the function that gives the place of an object from the object's url; None if they go by name.
OrderOf = Callable[[str], Callable[[str], int] | None]


class Listing(msgspec.Struct, frozen=True):
    """The objects of a dataset, in order; its columns have one entry per object.

    Attributes:
        urls: the urls that were listed.
        base: common beginning of the urls of all objects, a folder, or "" if they share none.
        keys: the rest of each object's url (`encode_text`).
        versions: version of each object (`encode_text`).
        sizes: int64, length of each object in bytes.
        labels: int32, class number by the folder right below the url, or -1 if there is none.
        classes: class names by number, sorted unless the user has given them.
    """

    urls: tuple[str, ...]
    base: str
    keys: list[bytes]
    versions: list[bytes]
    sizes: NDArray[np.int64]
    labels: NDArray[np.int32]
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.keys)

    def only(self, places: Sequence[int]) -> Listing:
        """Returns the listing of the objects at these places, in this order."""
        return Listing(
            urls=self.urls,
            base=self.base,
            keys=[self.keys[i] for i in places],
            versions=[self.versions[i] for i in places],
            sizes=self.sizes[places],
            labels=self.labels[places],
            classes=self.classes,
        )

    def record(self, index: int) -> ObjectRecord:
        """Returns object number `index`."""
        return ObjectRecord(
            self.base + decode_text(self.keys[index]), int(self.sizes[index]), decode_text(self.versions[index])
        )

    def url(self, index: int) -> bytes:
        """Returns the url of object number `index` (`encode_text`)."""
        return encode_text(self.base) + self.keys[index]


class _UrlListing(msgspec.Struct):
    """The objects below one url, in order.

    Attributes:
        url: the url that was listed.
        folder: beginning of the objects' urls, as the store spells it.
        keys: the rest of each object's url.
        versions: version of each object (`encode_text`).
        sizes: length of each object in bytes.
    """

    url: str
    folder: str
    keys: list[str]
    versions: list[bytes]
    sizes: NDArray[np.int64]

    def only(self, places: Sequence[int]) -> _UrlListing:
        if len(places) == len(self.keys):
            return self
        keys = [self.keys[i] for i in places]
        versions = [self.versions[i] for i in places]
        return _UrlListing(url=self.url, folder=self.folder, keys=keys, versions=versions, sizes=self.sizes[places])

    def list_others(self, places: Sequence[int]) -> list[ObjectRecord]:
        """Returns the objects that are not at these places."""
        kept = set(places)
        return [
            ObjectRecord(self.folder + key, int(self.sizes[i]), decode_text(self.versions[i]))
            for i, key in enumerate(self.keys)
            if i not in kept
        ]


class ListedDataset(msgspec.Struct, frozen=True):
    """The objects below all urls, and their format.

    Attributes:
        indexer: the format chosen for these objects.
        listing: the objects that it accepts.
        others: the objects that it rejects, by url, empty for whole objects.
        table: folder below which names of folders may be values (partitions), see `SurveyContext.base`. It is "" if
            each url is an object.
    """

    indexer: Indexer
    listing: Listing
    others: dict[str, ObjectRecord]
    table: str = ""


# Fewer names are sorted on the loop, which takes less time than asking a thread.
_FEW = 2000


async def list_objects(
    urls: Sequence[str],
    lister: Lister,
    choose_format: ChooseFormat,
    concurrency: int,
    order_of: OrderOf = lambda url: None,
) -> ListedDataset:
    """Lists all urls, and chooses the format for the objects but streamer's own and those in hidden folders.

    A url of one object, or one that names each by braces, finds hidden ones, too; else no hidden object is accepted.
    The objects are in the order of the urls, then by name, or as `order_of` says.

    Args:
        urls: prefixes, objects, patterns.
        lister: lists a url.
        choose_format: chooses the format, given the names of all objects.
        concurrency: urls that are listed at once.
        order_of: see `OrderOf`.

    Raises:
        ManifestError: a url has no objects, only hidden ones or none that the format accepts, or an object is listed
            twice.
        ConfigError: a url is not UTF-8, a folder is none of the classes that are given, or no format is found.
        StoreError: a store cannot be listed.
    """
    for url in urls:
        if not is_utf_8(url):
            raise ConfigError(
                f"url {describe_undecodable(url)}; name the folder above it by a pattern (*), or rename it",
                field="urls",
            )
    found = await map_concurrently(lambda url: _list_one(url, lister, order_of), urls, concurrency)
    # A thread does it: 10^6 names take a second.
    return await asyncio.to_thread(_choose, tuple(urls), found, choose_format)


def _choose(urls: tuple[str, ...], found: list[_UrlListing], choose_format: ChooseFormat) -> ListedDataset:
    """Chooses the format for the objects found, and splits them into those that it accepts and the others."""
    found = [_visible(part) for part in found]
    chosen = choose_format(key for part in found for key in part.keys)
    kept = [_select_objects(part, chosen) for part in found]
    others: dict[str, ObjectRecord] = {}
    for part, keep in () if chosen.whole_objects else zip(found, kept, strict=True):
        others |= {record.url: record for record in part.list_others(keep)}
    # Formats of other packages need not have classes.
    classes: Sequence[str] | None = getattr(chosen, "class_names", None)
    parts = [part.only(keep) for part, keep in zip(found, kept, strict=True)]
    # The urls share a folder, up to the first pattern, unless each is that of an object.
    table = ""
    if not all(_names_one(part) for part in found):
        # The first and the last url of the objects say how the store spells it.
        folders = [
            _folder(part.url, [part.folder + min(part.keys), part.folder + max(part.keys)], f"{_GLOB}{{")
            for part in found
        ]
        table = _common_folder(folders)
    return ListedDataset(chosen, _join(urls, parts, classes), others, table)


async def _list_one(url: str, lister: Lister, order_of: OrderOf) -> _UrlListing:
    """Lists one url; raises ManifestError if it has no objects or one twice."""
    # Columns instead of records: building from 10^6 files takes 417 MB at its peak instead of 459 (2026-11-20).
    names: list[str] = []
    versions: list[bytes] = []
    sizes = array("q")
    async for listed in lister.list(url):
        page = [record for record in listed if not is_beside(record.url, url)]
        names += [record.url for record in page]
        versions += [encode_text(record.version) for record in page]
        sizes.extend(record.size for record in page)
        # A listing that is known already gives its pages without a pause: 10^6 names take a second.
        await asyncio.sleep(0)
    if not names:
        raise ManifestError(f"no objects below {url}; is the prefix right?", url=url)
    # A thread does it: braces may stand for 10^6 urls, and so many names take a second.
    place_of = order_of(url) if "{" not in url else await asyncio.to_thread(order_of, url)
    if place_of is None and len(names) < _FEW:
        return _sort_objects(url=url, names=names, versions=versions, sizes=sizes, place_of=None)
    return await asyncio.to_thread(_sort_objects, url, names, versions, sizes, place_of)


def _sort_objects(
    url: str, names: list[str], versions: list[bytes], sizes: array[int], place_of: Callable[[str], int] | None
) -> _UrlListing:
    """Returns the objects of a url by name, or by `place_of`; raises ManifestError if one comes twice."""
    order = sort_places(names)
    if (twice := next((names[a] for a, b in pairwise(order) if names[a] == names[b]), None)) is not None:
        raise ManifestError(
            f"{twice} comes twice in the listing of {url}: the pages of the store overlap, or the url names it twice; "
            "name the objects by a list of urls, or report it to the store",
            url=twice,
        )
    folder = _folder(url, [names[i] for i in order])
    if place_of is not None:
        order = [order[i] for i in sort_places([place_of(names[i]) for i in order])]
    return _UrlListing(
        url=url,
        folder=folder,
        keys=[names[i][len(folder) :] for i in order],
        versions=[versions[i] for i in order],
        sizes=np.frombuffer(sizes, np.int64)[order],
    )


def _folder(url: str, names: Sequence[str], marks: str = _GLOB) -> str:
    """Returns the folder that a url names, as the store spells it in the urls of its objects.

    Args:
        url: the url that was listed.
        names: the urls of its objects, sorted; the first and the last one are enough.
        marks: characters with which a pattern in the url begins.
    """
    magic = min((place for mark in marks if (place := url.find(mark)) >= 0), default=len(url))
    stem = url[:magic]
    if magic < len(url) or url in names:
        stem = stem[: stem.rfind("/") + 1]
    # Users and stores spell a folder in several ways.
    if stem.startswith("file://"):
        stem = stem.removeprefix("file://")
    if "://" in stem:
        spellings = [stem if stem.endswith("/") else f"{stem}/"]
    else:
        absolute = os.path.abspath(stem).rstrip("/") + "/"
        real = os.path.realpath(stem).rstrip("/") + "/"
        spellings = [absolute, f"file://{absolute}", real, f"file://{real}"]
    for spelling in spellings:
        if all(name.startswith(spelling) for name in (names[0], names[-1])):
            return spelling
    return _common_folder([names[0], names[-1]])


def _common_folder(paths: Sequence[str]) -> str:
    """Returns the longest folder that contains all paths; "" if they share no more than a scheme."""
    levels = zip(*(path.split("/")[:-1] for path in paths), strict=False)
    shared = [level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels)]
    folder = "".join(f"{name}/" for name in shared)
    return "" if folder.endswith("://") else folder


def _visible(part: _UrlListing) -> _UrlListing:
    """Returns the objects that are not in hidden folders; raises ManifestError if all are.

    If the url names one object, or each by braces, all stay. So do hidden files, because the metadata of zarr have such
    names. `_select_objects` leaves out the others.
    """
    if _names_one(part) or _names_each(part):
        return part
    kept = []
    last = ""
    hides = False
    for i, key in enumerate(part.keys):
        # Keys of one folder follow each other.
        if (folder := key.rpartition("/")[0]) != last:
            last = folder
            hides = is_hidden_folder(folder)
        if not hides:
            kept.append(i)
    if not kept:
        raise ManifestError(
            f"all {len(part.keys)} objects below {part.url} are in hidden folders, as {part.keys[0]} is; hidden files "
            "are no samples: name the hidden folder itself as the url",
            url=part.url,
            objects=len(part.keys),
        )
    return part.only(kept)


def _names_one(part: _UrlListing) -> bool:
    """Whether the url is that of one object, which is accepted whatever its name is."""
    return len(part.keys) == 1 and part.url.endswith(part.keys[0])


def _names_each(part: _UrlListing) -> bool:
    """Whether the url names each object by braces, as a list of urls would."""
    return "{" in part.url and not any(mark in part.url for mark in _GLOB)


def _select_objects(part: _UrlListing, chosen: Indexer) -> list[int]:
    """Returns the places of the accepted objects, or [0] if the url names one; raises ManifestError for none."""
    if _names_one(part):
        return [0]
    # Formats of this package look themselves; those of others need not.
    keep = [
        i
        for i, key in enumerate(part.keys)
        if chosen.accepts(key) and (("/." not in key and key[:1] != ".") or not is_hidden(key))
    ]
    if _names_each(part):
        # A hidden object that is named is asked for by the name that it would have if it were not hidden.
        hidden = [(i, key.rpartition("/")[2].lstrip(".")) for i, key in enumerate(part.keys) if is_hidden(key)]
        keep = sorted([*keep, *(i for i, name in hidden if chosen.accepts(name))])
    if not keep:
        example = f"{part.folder}{part.keys[0]}"
        raise ManifestError(
            f"none of the {len(part.keys)} objects below {part.url} fits format {chosen.name!r} "
            f"(the first is {example}){chosen.explain_empty(part.keys)}",
            url=part.url,
            objects=len(part.keys),
        )
    return keep


def _join(urls: tuple[str, ...], parts: list[_UrlListing], given: Sequence[str] | None) -> Listing:
    """Joins the objects of all urls; `given` are the classes that the user names, or None.

    Raises:
        ManifestError: two urls name one object.
        ConfigError: a folder is none of the given classes.
    """
    base = _common_folder([part.folder for part in parts]) if parts else ""
    while not is_utf_8(base):
        base = base[: base.rstrip("/").rfind("/") + 1]
    keys = [encode_text(f"{part.folder[len(base) :]}{key}") for part in parts for key in part.keys]
    if len(parts) > 1 and len(set(keys)) < len(keys):
        seen: set[bytes] = set()
        double = next(key for key in keys if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ManifestError(
            f"{base}{decode_text(double)} is named by more than one of the {len(parts)} urls; name every object once",
            url=f"{base}{decode_text(double)}",
        )
    folders = (_class_name(key) for part in parts for key in part.keys)
    classes = tuple(sort_names({name for name in folders if name}))
    if given is not None:
        if strange := sorted(set(classes).difference(given)):
            raise ConfigError(
                f"{len(strange)} folders are none of the {len(given)} given classes, the first is {strange[0]!a}; add "
                "them to classes=, or name the folders that are meant as urls",
                field="classes",
            )
        classes = tuple(given)
    numbers = {name: number for number, name in enumerate(classes)}
    labels = (numbers.get(_class_name(key), -1) for part in parts for key in part.keys)
    return Listing(
        urls=urls,
        base=base,
        keys=keys,
        versions=[version for part in parts for version in part.versions],
        sizes=np.concatenate([part.sizes for part in parts]),
        labels=np.fromiter(labels, np.int32, len(keys)),
        classes=classes,
    )


def _class_name(key: str) -> str:
    """Returns the folder right below the url, as in torchvision's ImageFolder; "" for a file without one."""
    return key.partition("/")[0] if "/" in key else ""
