"""Copies manifests that others wrote: sizes are asked before anything is read, and little is in memory at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from streamer.base.threads import in_thread
from streamer.config import MiB
from streamer.errors import ManifestCorruptError
from streamer.fetch import Fetcher
from streamer.manifest.layout import ROOT_LIMIT_BYTES, ROOT_NAME, decode_root
from streamer.manifest.model import Extent, ObjectRecord
from streamer.manifest.staging import workplace
from streamer.manifest.table import Manifest
from streamer.manifest.transfer import check_sizes, select_files, verify_and_settle

# What is in memory of a table; requests of 4 MiB reach the rate of a link.
_PIECE_BYTES = 4 * MiB


async def copy_manifest(
    records: Sequence[ObjectRecord],
    folder: Path,
    url: str,
    fetcher: Fetcher,
    *,
    check: Callable[[Manifest], None] | None = None,
) -> Manifest | None:
    """Copies the manifest among the objects below a url into the folder of manifests; None if there is none.

    Its root is read first, and of the rest only the tables that it names, if they are as long as it says.

    Args:
        records: the objects below the url.
        folder: the folder of manifests.
        url: URL that errors name.
        fetcher: reads the objects.
        check: raises a ManifestError for a manifest that is not to be installed.

    Raises:
        ManifestError: it is not what was written, or cannot be written here.
        StoreError: as the store says.
    """
    found = select_files(records)
    if not found:
        return None
    record = found[ROOT_NAME]
    if record.size > ROOT_LIMIT_BYTES:
        raise ManifestCorruptError(
            f"{record.url}: {record.size} bytes long, more than {ROOT_LIMIT_BYTES}", path=record.url, size=record.size
        )
    raw = await fetcher.read(Extent(record, 0, record.size))
    root = await in_thread(None, decode_root, raw, url)
    tables = check_sizes(root, found, url)
    with workplace(folder) as place:
        for table in tables:
            await _copy(table, place / table.url.rpartition("/")[2], fetcher)
        await in_thread(None, (place / ROOT_NAME).write_bytes, raw)
        return await in_thread(None, verify_and_settle, place, folder, check)


async def _copy(record: ObjectRecord, path: Path, fetcher: Fetcher) -> None:
    with path.open("wb") as file:
        for start in range(0, record.size, _PIECE_BYTES):
            piece = await fetcher.read(Extent(record, start, min(start + _PIECE_BYTES, record.size)))
            await in_thread(None, file.write, piece)
