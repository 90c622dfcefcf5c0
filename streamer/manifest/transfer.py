"""A manifest as a few files that any store can hold: out with `put`, in with `get`, checked on the way in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from streamer.errors import ManifestCorruptError
from streamer.manifest.layout import ROOT_NAME, TABLE_SUFFIX, file_name
from streamer.manifest.staging import settle, workplace
from streamer.manifest.table import Manifest
from streamer.manifest.validation import open_verified

_NAME = re.compile(rf"[a-z]+-[0-9]{{5,9}}{re.escape(TABLE_SUFFIX)}")


def export_files(manifest: Manifest) -> Iterator[tuple[str, bytes]]:
    """Yields (relative name, content) of every file, one in memory at a time.

    root.json comes last: a reader that finds it at the destination finds all the others there, too.
    """
    names = [file_name(table, part) for part in range(manifest.parts) for table in manifest.content.schemas]
    for name in [*names, ROOT_NAME]:
        yield name, (manifest.path / name).read_bytes()


def install_files(files: Iterable[tuple[str, bytes]], root: Path, where: str = "the received manifest") -> Manifest:
    """Writes received files as `<root>/<digest>/` after checking every digest; all or nothing.

    Args:
        files: (relative name, content) as `export_files` yields them, in any order.
        root: folder of manifests on the local disk.
        where: where they come from, for errors.

    Raises:
        ManifestVersionError: of another version.
        ManifestCorruptError: a file is missing, foreign, or not what the digest says.
    """
    with workplace(root) as place:
        for name, content in files:
            if name != ROOT_NAME and not _NAME.fullmatch(name):
                raise ManifestCorruptError(f"{where}: {name[:80]!r} is no file of a manifest", path=where)
            (place / name).write_bytes(content)
        if not (place / ROOT_NAME).is_file():
            raise ManifestCorruptError(f"{where}: has no {ROOT_NAME}", path=where)
        digest = open_verified(place).digest
        # The reader of a copy verifies it again: a power loss that tears it costs another copy. To wait for the disk
        # six times took 36 ms of a trainer's start where others wrote to it (2026-11-22).
        return Manifest.open(settle(place, root / digest, durable=False))
