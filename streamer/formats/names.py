"""Extensions in one spelling: the names of fields, and the kinds of files; and the kinds that only bytes tell."""

from __future__ import annotations

import re

# The field of a file whose name has no extension.
NO_EXTENSION = "bin"
PICTURES = frozenset(
    [
        *("jpg", "jpeg", "jpe", "jfif", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm", "pbm", "pnm", "avif"),
        "jp2",
    ]
)
# Pictures without a decoder of their own, which count as pictures where files are counted.
OTHER_PICTURES = frozenset(["heic", "heif", "hif", "jxl"])
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
# A million names are looked through before an index: of most of them only the end is looked at.
_COMMON = {
    spelling: _SAME.get(ending, ending)
    for ending in PICTURES | AUDIO | VIDEO | {"npy", "npz", "cls"}
    for spelling in (ending, ending.upper(), ending.capitalize())
}
_SHARD = re.compile(r"\d{5}-of-\d{5}")
# ".txt.gz", but not the ".5.gz" of "v1.5.gz".
_PACKED = re.compile(r"\.([a-z][a-z0-9]*)$")
IMAGE, BYTES = "image", "bytes"
# JPEG, PNG, GIF, TIFF in both byte orders.
_STARTS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*")
_LONGEST = 12
# Most fields are told by one byte: 0.1 us instead of 0.6.
_FIRST_BYTES = frozenset(start[0] for start in (*_STARTS, b"RIFF", b"BM"))
_PACKINGS = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\x00": "xz",
    b"BZh": "bzip2",
    b"\x04\x22\x4d\x18": "lz4",
}


def field_name(name: str) -> str:
    """Returns the name of a field in lower case, its last extension "jpg" where it is "jpeg"."""
    lower = name.lower()
    stem, dot, ending = lower.rpartition(".")
    return f"{stem}{dot}{_SAME[ending]}" if ending in _SAME else lower


def base_name(key: str) -> str:
    """Returns the last part of a path; "" for the marker of an empty folder."""
    return key.rpartition("/")[2]


def is_shard(key: str) -> bool:
    """Whether a name says that it is one of several: `c4-train.00000-of-01024.json.gz`."""
    return "-of-" in key and _SHARD.search(key) is not None


def is_common(key: str) -> bool:
    """Whether a file has an extension that most datasets have."""
    return key.rpartition(".")[2] in _COMMON


def extension(key: str) -> str:
    """Returns the field of a file: "jpg" of "a/b.c.JPEG", "txt.gz" of "a/b.txt.gz", "bin" without an extension."""
    if (known := _COMMON.get(key.rpartition(".")[2])) is not None and not key.startswith(".", key.rfind("/") + 1):
        return known
    stem, dot, ending = base_name(key).lower().rpartition(".")
    if not (dot and stem and ending):
        return NO_EXTENSION
    if ending == "gz" and (inner := _PACKED.search(stem, 1)):
        return f"{inner[1]}.gz"
    return _SAME.get(ending, ending)


def kind_of_bytes(content: memoryview) -> str:
    """Returns "image" for the beginning of a JPEG, PNG, GIF, TIFF, WebP or BMP picture, else "bytes"."""
    if not content or content[0] not in _FIRST_BYTES:
        return BYTES
    head = bytes(content[:_LONGEST])
    if head.startswith(_STARTS) or (head[:4] == b"RIFF" and head[8:] == b"WEBP"):
        return IMAGE
    # Two letters are too few to tell by: the size of the file follows them.
    if head[:2] == b"BM" and int.from_bytes(head[2:6], "little") == len(content):
        return IMAGE
    return BYTES


def packing_of(content: memoryview) -> str:
    """Returns the name of the compression of which this is the beginning; "" for none."""
    return next((name for start, name in _PACKINGS.items() if content[: len(start)] == start), "")
