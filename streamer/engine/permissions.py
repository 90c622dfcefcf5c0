"""Says what clients and manifests are permitted: to read by a digest, to be believed, to be written.

The digest of a manifest is no secret: it is in the statistics and in the cache folder. So it gives no right: in a
service whose clients send their own storage options, a client reads with options with which the manifest was asked for,
or which the store accepts for one of its objects.
"""

from __future__ import annotations

from contextlib import suppress

from streamer.engine.datasets import Dataset, Datasets
from streamer.engine.fetching.fetchers import Fetchers
from streamer.engine.url_allowlist import UrlAllowlist
from streamer.errors import ManifestCorruptError, ManifestError, ObjectChangedError, ObjectNotFoundError
from streamer.fetch import Fetcher
from streamer.manifest.model import Extent, ObjectRecord
from streamer.manifest.table import Manifest
from streamer.manifest.transfer import export_files
from streamer.store.addresses.urls import shown, split
from streamer.wire.store_options import StoreOptions

# Among the details of an error.
OWNER_RULE = "manifests of blocks lie with their objects"
# Pairs of a manifest and options: 300 bytes each. The oldest is proven again.
_MOST = 50_000


class Rights:
    """Remembers which options were shown to be good for which manifest. Owned by the engine, on its loop."""

    def __init__(self, datasets: Datasets, fetchers: Fetchers) -> None:
        self._datasets = datasets
        self._fetchers = fetchers
        self._known: dict[tuple[str, str], None] = {}

    def __repr__(self) -> str:
        return f"Rights({len(self._known)} known)"

    def grant(self, digest: str, options: StoreOptions) -> None:
        """Records that a manifest was found with these options."""
        if self._fetchers.allowlist.guarded:
            if len(self._known) >= _MOST:
                del self._known[next(iter(self._known))]
            self._known[digest, options.key] = None

    def has(self, digest: str, options: StoreOptions) -> bool:
        """Whether these options are known to be good; always where the service has its own, or one user."""
        return not self._fetchers.allowlist.guarded or (digest, options.key) in self._known

    async def prove(self, digest: str, options: StoreOptions) -> None:
        """Reads a byte of the objects unless the options are known to be good; a restarted engine knows none.

        Raises:
            AccessDeniedError: the store refuses.
            StreamerError: the manifest is not here, or the store cannot be asked.
        """
        if self.has(digest, options):
            return
        dataset = self._datasets.get(digest, options.mapping)
        for record in _examples(dataset.manifest):
            await self._read(dataset, record)
        self.grant(digest, options)

    async def _read(self, dataset: Dataset, record: ObjectRecord) -> None:
        self._fetchers.allowlist.check_objects([record.url], dataset.options)
        async with self._fetchers.of(dataset.options) as fetcher:
            try:
                await fetcher.read(Extent(record, 0, 1))
            except ObjectChangedError:
                # The store has answered: readers get this error, or the bytes of the cache.
                return


def _examples(manifest: Manifest) -> list[ObjectRecord]:
    """An object that has bytes, of each bucket or server; of the first one if all are in one folder."""
    found: dict[str, ObjectRecord] = {}
    one = manifest.content.base.count("/") > 2
    for number in range(manifest.objects):
        record = manifest.object(number)
        if record.size:
            found.setdefault("" if one else split(record.url).root, record)
            if one:
                break
    return list(found.values())


class Ownership:
    """Compares who may write a manifest with who may write its objects.

    How blocks are recoded depends on the facts in the manifest, which cannot be computed again without the data, and
    are not in the keys of its chunks: others who read the same objects would get what this manifest says.

    Attributes:
        is_one: whether they are the same, as far as this engine knows.
    """

    def __init__(self, allowlist: UrlAllowlist, url: str) -> None:
        self.is_one = True
        self._allowlist = allowlist
        self._url = url

    def check(self, manifest: Manifest) -> None:
        """Refuses a manifest of blocks that comes from elsewhere than its objects.

        Raises:
            ManifestCorruptError: it does.
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
