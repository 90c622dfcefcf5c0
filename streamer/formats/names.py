"""Tells from the names of files what they are: fields, kinds of files, splits, folders that belong together.

Two functions look at the first bytes of a content instead: `kind_of_bytes` and `find_compression_of_bytes`. Formats,
`formats/detect.py`, `decode/`, `annotations/`, `shards/`, `cli/options.py` and `batches/batch/mismatch.py` use it. A
key is the path of an object below the dataset's url.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

# The field of a file whose name has no extension.
NO_EXTENSION = "bin"
IMAGES = frozenset(
    [
        *("jpg", "jpeg", "jpe", "jfif", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm", "pbm", "pnm", "avif"),
        "jp2",
    ]
)
# Extensions of images that are not decoded here, but count as images where files are counted.
OTHER_IMAGES = frozenset(["heic", "heif", "hif", "jxl"])
AUDIO = frozenset(["wav", "flac", "mp3", "ogg", "opus", "m4a", "aac"])
VIDEO = frozenset(["mp4", "mkv", "mov", "avi", "webm", "mpg"])
# Extensions of files that accompany data.
COMPANIONS = frozenset(
    [
        *("txt", "md", "rst", "html", "pdf", "json", "jsonl", "xml", "yaml", "yml", "csv", "tsv", "log", "py", "sh"),
        *("db", "idx", "index", "lst", "txn", "manifest", "md5", "sha1", "sha256", "sha512", "bib", "cff", "toml"),
    ]
)
_SAME = {"jpeg": "jpg"}
# Extension of the sample's field by spelling ("JPEG": "jpg"). A million names are looked through before an index: most
# are found here by their end, without taking them apart.
_COMMON = {
    spelling: _SAME.get(ending, ending)
    for ending in IMAGES | AUDIO | VIDEO | {"npy", "npz", "cls"}
    for spelling in (ending, ending.upper(), ending.capitalize())
}
_SHARD = re.compile(r"\d{5}-of-\d{5}")
# The extension before a ".gz": ".txt" of "a.txt.gz", but not ".5" of "v1.5.gz".
_PACKED = re.compile(r"\.([a-z][a-z0-9]*)$")
_TRAINING = frozenset(["training", "train", "trainset", "trainval"])
_OTHERS = frozenset(["testing", "test", "testset", "validation", "valid", "val", "valset", "dev", "eval", "evaluation"])
# A folder with such a name, or a file whose name begins so, is a split regardless of what lies beside it.
_PLAIN = re.compile(r"(training|train|testing|test|validation|valid|val|dev)(/|[-_.][^/]*)", re.IGNORECASE)
# Words of names such as "trainA", "train2017", "imagenet-train", "TRAIN_images", "leftImg8bit", "JPEGImages".
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_NUMBERS = re.compile(r"\d+")
_INPUTS = frozenset(["images", "image", "imgs", "img", "photos", "rgb", "inputs", "input"])
_TARGETS = frozenset(
    [
        *("masks", "mask", "labels", "label", "annotations", "annotation", "anns", "ann", "segmentations"),
        *("segmentation", "seg", "depths", "depth", "targets", "target", "gt", "disparity"),
    ]
)
IMAGE = "image"
BYTES = "bytes"
# First bytes of JPEG, PNG, GIF, and TIFF in both byte orders.
_STARTS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*")
_LONGEST = 12
# The first byte of most fields tells that they are no images: it takes 0.1 us instead of 0.6.
_FIRST_BYTES = frozenset(start[0] for start in (*_STARTS, b"RIFF", b"BM"))
_PACKINGS = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\x00": "xz",
    b"BZh": "bzip2",
    b"\x04\x22\x4d\x18": "lz4",
}


def field_name(name: str) -> str:
    """Returns the name of a field in lower case, with "jpg" in place of a last extension "jpeg"."""
    lower = name.lower()
    stem, dot, ending = lower.rpartition(".")
    return f"{stem}{dot}{_SAME[ending]}" if ending in _SAME else lower


def base_name(key: str) -> str:
    """Returns the last part of a path; "" for the marker of an empty folder."""
    return key.rpartition("/")[2]


def is_shard(key: str) -> bool:
    """Whether a name says that the file is one of several shards: `c4-train.00000-of-01024.json.gz`."""
    return "-of-" in key and _SHARD.search(key) is not None


def is_common(key: str) -> bool:
    """Whether a file has an extension of an image, audio or video file, or one of "npy", "npz" and "cls"."""
    return key.rpartition(".")[2] in _COMMON


def extension(key: str) -> str:
    """Returns a file's extension in lower case: "jpg" for "a/b.c.JPEG", "txt.gz" for "a/b.txt.gz", "bin" for none.

    It is the name of the field of a sample that consists of this file.
    """
    if (known := _COMMON.get(key.rpartition(".")[2])) is not None and not key.startswith(".", key.rfind("/") + 1):
        return known
    stem, dot, ending = base_name(key).lower().rpartition(".")
    if not (dot and stem and ending):
        return NO_EXTENSION
    if ending == "gz" and (inner := _PACKED.search(stem, 1)):
        return f"{inner[1]}.gz"
    return _SAME.get(ending, ending)


def kind_of_bytes(content: memoryview) -> str:
    """Returns "image" if a content is a JPEG, PNG, GIF, TIFF, WebP or BMP image by its first bytes, else "bytes"."""
    if not content or content[0] not in _FIRST_BYTES:
        return BYTES
    head = bytes(content[:_LONGEST])
    if head.startswith(_STARTS) or (head[:4] == b"RIFF" and head[8:] == b"WEBP"):
        return IMAGE
    # Two letters are too few to tell by: the size of the file follows them.
    if head[:2] == b"BM" and int.from_bytes(head[2:6], "little") == len(content):
        return IMAGE
    return BYTES


def find_compression_of_bytes(content: memoryview) -> str:
    """Returns "gzip", "zstd", "xz", "bzip2" or "lz4" if a content is compressed by its first bytes; else ""."""
    return next((name for start, name in _PACKINGS.items() if content[: len(start)] == start), "")


def splits_in(keys: Iterable[str], *, of_files: bool) -> list[str]:
    """Returns the names of the splits in which objects are: folders as "train/", groups of files as "test-*".

    Returns [] unless one of the splits is for training and another is not. A folder "train", or a file whose name
    begins so ("train-0.tar"), always tells a split. Other names with such a word among their words (`train_images`,
    `trainA`, `test2017`) tell one only if more than half of the names beside them do: of a thousand classes two may be
    called `train_station` and `test_tube`.

    Args:
        keys: paths of objects.
        of_files: whether the names of files count besides those of folders.
    """
    found: set[str] = set()
    for names in _siblings(keys, of_files=of_files).values():
        words = {name: _split_word(name) for name in names}
        # Names that differ in numbers only count once.
        kinds = {_NUMBERS.sub("0", name): word for name, word in words.items()}
        plain = {name for name in names if _PLAIN.fullmatch(name)}
        found |= plain
        if 2 * sum(word != "" for word in kinds.values()) > len(kinds):
            found |= {name for name, word in words.items() if word}
    present = {_split_word(name) for name in found}
    if not (present & _TRAINING and present & _OTHERS):
        return []
    return sorted({_shorten_name(name) for name in found})


def find_folder_pairs(keys: Iterable[str]) -> list[str]:
    """Returns folders, such as "images/" and "masks/", of which some by their names hold inputs and others targets.

    The folders are sorted and lie in one folder. Returns [] if there are none.
    """
    for parent, names in sorted(_siblings(keys, of_files=False).items()):
        words = {name: set(map(str.lower, _WORDS.findall(name))) for name in names}
        inputs = {name for name in names if words[name] & _INPUTS and not words[name] & _TARGETS}
        targets = {name for name in names if words[name] & _TARGETS}
        if inputs and targets:
            return sorted(f"{parent}{name}" for name in inputs | targets)
    return []


def _siblings(keys: Iterable[str], *, of_files: bool) -> Mapping[str, set[str]]:
    """Returns the names in each folder, by the folder's path ("" or "a/"). Names of folders end in a slash.

    Names of files are among them only with `of_files`.
    """
    found: defaultdict[str, set[str]] = defaultdict(set)
    if of_files:
        keys = list(keys)
        for key in keys:
            folder, slash, name = key.rpartition("/")
            found[f"{folder}{slash}"].add(name)
    # The set is short, because most of a million files are in few folders.
    waiting = {key.rpartition("/")[0] for key in keys}
    known = {""}
    while waiting:
        folder = waiting.pop()
        if folder not in known:
            known.add(folder)
            above, slash, name = folder.rpartition("/")
            found[f"{above}{slash}"].add(f"{name}/")
            waiting.add(above)
    return found


def _split_word(name: str) -> str:
    """Returns the word in a name that tells a split, a word for training first; "" if there is none."""
    words = set(map(str.lower, _WORDS.findall(name)))
    return next(iter(sorted(words & _TRAINING) or sorted(words & _OTHERS)), "")


def _shorten_name(name: str) -> str:
    """Returns the name of a folder as it is, and one for all files that differ in numbers: "train-*"."""
    if name.endswith("/"):
        return name
    plain = _PLAIN.fullmatch(name)
    return f"{plain[1]}{plain[2][:1]}*" if plain else _NUMBERS.sub("*", name)
