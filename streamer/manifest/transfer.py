"""Copies manifests: exports one as a few files that any store can hold, and installs such files after checking them.

Used by `cli/index_command.py` and `shards/` for manifests at a url, by `engine/manifests/manifest_copy.py` and
`indexing/source.py` to read them from there, and by `peers/group.py`, which gets them from another engine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from streamer.errors import ManifestCorruptError
from streamer.manifest.layout import ROOT_NAME, TABLE_SUFFIX, Root, file_name
from streamer.manifest.model import ObjectRecord
from streamer.manifest.staging import settle, workplace
from streamer.manifest.table import Manifest
from streamer.manifest.validation import open_and_verify, stamp_keys

_FILE_NAME = re.compile(rf"{re.escape(ROOT_NAME)}|[a-z]+-[0-9]{{5,9}}{re.escape(TABLE_SUFFIX)}")


def export_files(manifest: Manifest) -> Iterator[tuple[str, bytes]]:
    """Yields (name, content) of every file of a manifest, one in memory at a time.

    root.json comes last: a reader that finds it at the destination finds all the others, too.

    Raises:
        OSError: a file cannot be read.
    """
    names = [file_name(table, part) for part in range(manifest.parts) for table in manifest.content.schemas]
    for name in [*names, ROOT_NAME]:
        yield name, (manifest.path / name).read_bytes()


def select_files(records: Iterable[ObjectRecord]) -> dict[str, ObjectRecord]:
    """Selects the files of a manifest among the objects below a url; returns them by name.

    Other objects are ignored. The result is empty if there is no root.json. If there are several, the files beside the
    one in the outermost folder are selected.
    """
    named = [record for record in records if _FILE_NAME.fullmatch(record.url.rpartition("/")[2])]
    roots = [record.url for record in named if record.url.endswith(f"/{ROOT_NAME}")]
    if not roots:
        return {}
    folder = min(roots, key=lambda url: url.count("/")).removesuffix(ROOT_NAME)
    inside = {record.url.removeprefix(folder): record for record in named if record.url.startswith(folder)}
    return {name: record for name, record in inside.items() if "/" not in name}


def check_sizes(root: Root, records: Mapping[str, ObjectRecord], where: str) -> list[ObjectRecord]:
    """Returns the objects with the tables of a manifest, in the order in which root.json lists them.

    Args:
        root: content of root.json.
        records: result of `select_files`.
        where: url of the manifest, for errors.

    Raises:
        ManifestCorruptError: an object is missing, or not as long as root.json says.
    """
    for name, size in root.file_bytes.items():
        if name not in records:
            raise ManifestCorruptError(f"{where}: {name} is missing; index again", path=where)
        if records[name].size != size:
            raise ManifestCorruptError(
                f"{where}: {name} has {records[name].size} bytes, {ROOT_NAME} says {size}; index again", path=where
            )
    return [records[name] for name in root.file_bytes]


def verify_and_settle(place: Path, root: Path, check: Callable[[Manifest], None] | None = None) -> Manifest:
    """Checks every digest of a manifest, renames its folder to `<root>/<digest>`, and opens it there.

    A folder of that name stays if it is intact. Stamps the keys as checked (`stamp_keys`).

    Args:
        place: folder with the files of the manifest.
        root: folder of manifests on the local disk.
        check: raises a ManifestError for a manifest that is not to be installed; None takes any.

    Raises:
        ManifestError: see `open_and_verify`, or as `check` says.
        OSError: see `settle`.
    """
    manifest = open_and_verify(place)
    if check is not None:
        check(manifest)
    # The copy is not made durable: its reader verifies it again, so one that a power loss has torn is copied anew.
    # Waiting for the disk six times took 36 ms of a trainer's start while other programs wrote to it (2026-11-22).
    folder = settle(place, root / manifest.digest, durable=False)
    stamp_keys(folder)
    return Manifest.open(folder)


def install_files(
    files: Iterable[tuple[str, bytes]],
    root: Path,
    where: str = "the received manifest",
    *,
    check: Callable[[Manifest], None] | None = None,
) -> Manifest:
    """Writes received files as `<root>/<digest>/` after checking every digest, all or nothing; opens the manifest.

    Args:
        files: (name, content) as `export_files` yields them, in any order.
        root: folder of manifests on the local disk.
        where: origin of the files, for errors.
        check: raises a ManifestError for a manifest that is not to be installed. None takes any.

    Raises:
        ManifestVersionError: the manifest has a version that this streamer does not read.
        ManifestCorruptError: a file is missing or foreign, or does not match its digest.
        ManifestError: a file cannot be written, or as `check` says.
    """
    with workplace(root) as place:
        for name, content in files:
            if not _FILE_NAME.fullmatch(name):
                raise ManifestCorruptError(f"{where}: {name[:80]!r} is not a file of a manifest", path=where)
            (place / name).write_bytes(content)
        if not (place / ROOT_NAME).is_file():
            raise ManifestCorruptError(f"{where}: has no {ROOT_NAME}", path=where)
        return verify_and_settle(place, root, check)
