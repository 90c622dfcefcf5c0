"""Recognises what is found among the objects of a dataset and is no data: streamer's folder, hidden files, pointers.

Used by formats to accept files by name, by `indexing/` and the engine when they list a dataset, by
`annotations/parse.py` for pointers, by `shards/` and `cli/` for the name of streamer's folder, and by `cache/` and
`store/` for the mark of a cache folder.
"""

from __future__ import annotations

from functools import lru_cache

# Streamer's own folder below a dataset's url has its manifest and the receipts of its shards, and never data.
BESIDE = ".streamer/"
_WITHIN = f"/{BESIDE}"

# The file that marks a cache folder (`cache/folder.py`). The local store lists no folder that has it.
CACHE_MARKER = "streamer-cache"

# Systems put these beside data, under names that begin with no dot.
_OF_SYSTEMS = frozenset(["__MACOSX", "@eaDir", "$RECYCLE.BIN", "System Volume Information", "lost+found"])
_FILES_OF_SYSTEMS = frozenset(["Thumbs.db", "desktop.ini"])
_HERE = frozenset([".", ".."])

# A pointer of Git LFS is shorter than this (git-lfs, docs/spec.md, "The Pointer").
POINTER_BYTES = 1024
_BEGIN = b"version https://git-lfs"
# The end of an error about a pointer: what it is, and what is to be done.
POINTER_ADVICE = (
    "is a pointer of Git LFS, not the file itself: run `git lfs pull` in the clone, or download it from where it is "
    "(hf download, or hf:// as the url)"
)


def is_beside(object_url: str, url: str) -> bool:
    """Whether an object found below `url` is in a folder of streamer's own; never if `url` is such a folder itself."""
    return _WITHIN in object_url and _WITHIN not in f"{url}/"


def is_hidden(key: str) -> bool:
    """Whether a file, or a folder that it is in, is hidden.

    Hidden are names that begin with a dot (`.DS_Store`, `._a.jpg`, `.git/HEAD`, `a/.ipynb_checkpoints/b.jpg`), what
    systems put beside data, and the marker of an empty folder (a key that ends in a slash).

    Args:
        key: path of the file below the dataset's url.
    """
    folder, _, name = key.rpartition("/")
    return name[:1] in {".", ""} or name in _FILES_OF_SYSTEMS or (folder != "" and is_hidden_folder(folder))


# Most keys of a dataset are in few folders: the answer for each is kept.
@lru_cache(maxsize=4096)
def is_hidden_folder(folder: str) -> bool:
    """Whether a folder, or one of those that it is in, is hidden as in `is_hidden`; "." and ".." are not."""
    return any((part[:1] == "." and part not in _HERE) or part in _OF_SYSTEMS for part in folder.split("/"))


def is_pointer(content: bytes | memoryview) -> bool:
    """Whether an object that consists of these bytes is a pointer of Git LFS: short, with a pointer's first words."""
    return len(content) < POINTER_BYTES and content[: len(_BEGIN)] == _BEGIN
