"""Copies manifests from a url to the cache folder and back, and decides whether one from elsewhere is used.

`manifests.py` calls it. The sizes of a manifest's files are checked before they are read, and little of them is in
memory at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from streamer.base.concurrency import in_thread
from streamer.config import MiB
from streamer.engine.url_allowlist import UrlAllowlist
from streamer.errors import ManifestCorruptError, ManifestError, ObjectNotFoundError
from streamer.fetch import Fetcher
from streamer.manifest.layout import ROOT_LIMIT_BYTES, ROOT_NAME, decode_root
from streamer.manifest.model import Extent, ObjectRecord
from streamer.manifest.staging import workplace
from streamer.manifest.table import Manifest
from streamer.manifest.transfer import check_sizes, export_files, select_files, verify_and_settle
from streamer.store.addresses.urls import shown

# Value of `rule` in the details of the error that `Ownership.check` raises.
OWNER_RULE = "manifests of blocks lie with their objects"

# Bytes of a table that are read at once: requests of 4 MiB reach the rate of a link.
_PIECE_BYTES = 4 * MiB


async def copy_manifest(
    records: Sequence[ObjectRecord],
    folder: Path,
    url: str,
    fetcher: Fetcher,
    *,
    check: Callable[[Manifest], None] | None = None,
) -> Manifest | None:
    """Copies the manifest among the objects below a url into the folder of manifests.

    Its root file is read first, and then the tables that the root names, if they are as long as it says.

    Args:
        records: the objects below the url.
        folder: the folder of manifests.
        url: URL that errors name.
        fetcher: reads the objects.
        check: raises a ManifestError for a manifest that is not to be installed.

    Returns:
        The installed manifest, or None if there is none among the objects.

    Raises:
        ManifestError: it is damaged, is refused by `check`, or cannot be written here.
        StoreError: the store does not give its files.
    """
    # It is done in a thread, because a client may name a url of 10^6 objects, which take a second.
    found = await in_thread(None, select_files, records)
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
            path = place / table.url.rpartition("/")[2]
            with path.open("wb") as file:
                for start in range(0, table.size, _PIECE_BYTES):
                    piece = await fetcher.read(Extent(table, start, min(start + _PIECE_BYTES, table.size)))
                    await in_thread(None, file.write, piece)
        await in_thread(None, (place / ROOT_NAME).write_bytes, raw)
        return await in_thread(None, verify_and_settle, place, folder, check)


class Ownership:
    """Decides whether a manifest at a url may be used for objects that other people may have written.

    How blocks are recoded follows from facts in the manifest. They cannot be computed again without the data, and they
    are not in the keys of its chunks. So other users who read the same objects would get what this manifest says.

    Args:
        allowlist: knows which urls have the same owner.
        url: url of the manifest.

    Attributes:
        is_one: whether those who may write the manifest may write its objects, too, as far as this engine knows. It is
            set by `check`.
    """

    def __init__(self, allowlist: UrlAllowlist, url: str) -> None:
        self.is_one = True
        self._allowlist = allowlist
        self._url = url

    def check(self, manifest: Manifest) -> None:
        """Sets `is_one`, and refuses a manifest of blocks that comes from elsewhere than its objects.

        Raises:
            ManifestCorruptError: it is such a manifest.
        """
        urls = (manifest.object(number).url for number in range(manifest.objects))
        self.is_one = not self._allowlist.decides or self._allowlist.has_one_owner(self._url, urls)
        if manifest.recoded and not self.is_one:
            raise ManifestCorruptError(
                f"the manifest at {shown(self._url)} says how blocks of {shown(manifest.object(0).url)} are recoded, "
                "and does not lie in the same place: a shared service believes that only of what lies below the same "
                "url of [[datasets]], or in the same bucket; put the manifest there, or leave manifest= out",
                rule=OWNER_RULE,
            )


async def write_manifest(manifest: Manifest, url: str, fetcher: Fetcher) -> None:
    """Copies a manifest to a url, its root file last: a reader that finds the root finds all other files.

    Files of this manifest that are there already stay: another writer may have been killed before it was done.

    Raises:
        ManifestError: something else has the name of one of its files.
        StoreError: the store refuses.
        OSError: a file of the manifest cannot be read.
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
