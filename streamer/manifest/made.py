"""What is made of manifests, in files and folders whose names begin with their digests: it is removed after them.

It lies beside the manifests, or in a spare folder where theirs is read-only for the process that makes it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from streamer.manifest.reader_lock import remove_unread

DIGEST = re.compile("[0-9a-f]{32}")


def made_in(folder: Path) -> dict[str, list[Path]]:
    """What a folder has of manifests, by their digests: selections, columns, rows of documents, tables of keys."""
    made: dict[str, list[Path]] = {}
    with suppress(FileNotFoundError):
        for path in folder.iterdir():
            first, dot, _ = path.name.partition(".")
            for digest in first.split("-") if dot and DIGEST.match(first) else ():
                made.setdefault(digest, []).append(path)
    return made


def remove_orphans(folder: Path, digests: Collection[str]) -> None:
    """Removes what is made of manifests that are not among these, but for what a process has open.

    Raises:
        OSError: it cannot be removed.
    """
    for path in {path for digest, paths in made_in(folder).items() if digest not in digests for path in paths}:
        # Several processes may remove it at once.
        with suppress(FileNotFoundError):
            if path.is_dir():
                remove_unread(path)
            else:
                path.unlink()
