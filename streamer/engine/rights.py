"""Says who may read a manifest's objects in a service whose clients send their own storage options.

The digest of a manifest is no secret: it is in the statistics and in the cache folder. So it gives no right: a client
reads with options with which the manifest was asked for, or which the store accepts for one of its objects.
"""

from __future__ import annotations

from collections.abc import Mapping

from streamer.engine.datasets import Dataset, Datasets
from streamer.engine.fetching.fetchers import Fetchers
from streamer.errors import ObjectChangedError
from streamer.fetch.fetcher_set import options_key
from streamer.manifest.model import Extent, ObjectRecord
from streamer.manifest.table import Manifest
from streamer.store.urls import split

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

    def grant(self, digest: str, options: Mapping[str, object]) -> None:
        """Records that a manifest was found with these options."""
        if self._fetchers.allowlist.guarded:
            if len(self._known) >= _MOST:
                del self._known[next(iter(self._known))]
            self._known[digest, options_key(options)] = None

    def has(self, digest: str, options: Mapping[str, object]) -> bool:
        """Whether these options are known to be good; always where the service has its own, or one user."""
        return not self._fetchers.allowlist.guarded or (digest, options_key(options)) in self._known

    async def prove(self, digest: str, options: Mapping[str, object]) -> None:
        """Reads a byte of the objects unless the options are known to be good; a restarted engine knows none.

        Raises:
            AccessDeniedError: the store refuses.
            StreamerError: the manifest is not here, or the store cannot be asked.
        """
        if self.has(digest, options):
            return
        dataset = self._datasets.get(digest, options)
        for record in _examples(dataset.manifest):
            await self._read(dataset, record)
        self.grant(digest, options)

    async def _read(self, dataset: Dataset, record: ObjectRecord) -> None:
        self._fetchers.allowlist.check_objects([record.url], dataset.options)
        async with self._fetchers.of(dataset.options) as fetcher:
            try:
                await fetcher.read(Extent(record, 0, 1))
            except ObjectChangedError:
                # The store has answered: whoever reads it will get this error, or its bytes from the cache.
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
