"""Pointers of Git LFS: what a clone without git-lfs has in place of files.

Source: git-lfs, docs/spec.md, "The Pointer".
"""

from __future__ import annotations

# A pointer is shorter than this.
MOST_BYTES = 1024
_BEGIN = b"version https://git-lfs"
# What is to be done about it.
ADVICE = (
    "is a pointer of Git LFS, not the file itself: run `git lfs pull` in the clone, or download it from where it is "
    "(hf download, or hf:// as the url)"
)


def is_pointer(content: bytes | memoryview) -> bool:
    """Whether an object of this content, or whose first bytes these are, is a pointer."""
    return len(content) < MOST_BYTES and content[: len(_BEGIN)] == _BEGIN
