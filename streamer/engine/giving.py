"""Copies a manifest that was built here to a url, over nothing that is there already."""

from __future__ import annotations

from contextlib import suppress

from streamer.errors import ManifestError, ObjectNotFoundError
from streamer.fetch import Fetcher
from streamer.manifest.model import Extent, ObjectRecord
from streamer.manifest.table import Manifest
from streamer.manifest.transfer import export_files
from streamer.store.urls import shown


async def give(manifest: Manifest, url: str, fetcher: Fetcher) -> None:
    """Copies a manifest to a url, its root last: a reader that finds the root finds all of it.

    Files of this manifest that are there already, because another writer was killed over them, stay.

    Raises:
        ManifestError: something else has the name of one of its files.
        StoreError: the store refuses.
    """
    folder = f"{url.rstrip('/')}/"
    found: list[ObjectRecord] = []
    with suppress(ObjectNotFoundError):
        found = [record for page in await fetcher.list(folder) for record in page]
    there = {record.url.removeprefix(folder): record for record in found}
    for name, content in export_files(manifest):
        record = there.get(name)
        if record is None:
            await fetcher.put(f"{folder}{name}", content)
            continue
        same = record.size == len(content) and await fetcher.read(Extent(record, 0, record.size)) == content
        if not same:
            raise ManifestError(
                f"{shown(record.url)} is not a file of this manifest, and is not replaced: name another folder as "
                "manifest=, or remove the object",
                url=shown(record.url),
            )
