"""What is found among the objects of a dataset and is no data: streamer's own folder, hidden files, pointers."""

from __future__ import annotations

from functools import lru_cache

# Manifest and receipts of shards; never data.
BESIDE = ".streamer/"
_WITHIN = f"/{BESIDE}"

# The marker of a cache folder (`streamer/cache/folder.py`), which may lie below a local dataset's url.
CACHE_MARKER = "streamer-cache"

# Systems put these beside data, under names that begin with no dot.
_OF_SYSTEMS = frozenset(["__MACOSX", "@eaDir", "$RECYCLE.BIN", "System Volume Information", "lost+found"])
_FILES_OF_SYSTEMS = frozenset(["Thumbs.db", "desktop.ini"])
_HERE = frozenset([".", ".."])

# A pointer is shorter than this (git-lfs, docs/spec.md, "The Pointer").
POINTER_BYTES = 1024
_BEGIN = b"version https://git-lfs"
# Ends an error: says what is to be done.
POINTER_ADVICE = (
    "is a pointer of Git LFS, not the file itself: run `git lfs pull` in the clone, or download it from where it is "
    "(hf download, or hf:// as the url)"
)


def is_beside(object_url: str, url: str) -> bool:
    """Whether an object found below `url` is in streamer's own folder."""
    return _WITHIN in object_url and _WITHIN not in f"{url}/"


def is_hidden(key: str) -> bool:
    """Whether a file is hidden, or a folder that it is in, at any depth below the dataset's url.

    Hidden is what begins with a dot (`.DS_Store`, `._a.jpg`, `.git/HEAD`, `a/.ipynb_checkpoints/b.jpg`), what systems
    put beside data, and the marker of an empty folder (a key that ends in a slash).
    """
    folder, _, name = key.rpartition("/")
    return name[:1] in {".", ""} or name in _FILES_OF_SYSTEMS or (folder != "" and is_hidden_folder(folder))


# Most keys of a dataset are in few folders, whose parts are looked at once.
@lru_cache(maxsize=4096)
def is_hidden_folder(folder: str) -> bool:
    """Whether a folder is hidden, or one that it is in; "." and ".." are not."""
    return any((part[:1] == "." and part not in _HERE) or part in _OF_SYSTEMS for part in folder.split("/"))


def is_pointer(content: bytes | memoryview) -> bool:
    """Whether an object of this content, or whose first bytes these are, is a pointer of Git LFS."""
    return len(content) < POINTER_BYTES and content[: len(_BEGIN)] == _BEGIN
