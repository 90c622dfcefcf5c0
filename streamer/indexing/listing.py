"""Lists a large prefix in tasks, each for some pages of a range of keys."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from itertools import chain, pairwise

import msgspec

from streamer.config import FetchConfig
from streamer.errors import Discreet
from streamer.executors.runner import Runner, run_dynamic
from streamer.fetch import Fetcher
from streamer.indexing.key_ranges import KeyRange, KeyRanges, is_clean
from streamer.indexing.stores import StoreOpener
from streamer.manifest.model import ObjectRecord
from streamer.store.addresses.patterns import Pattern

Page = Sequence[ObjectRecord]

# Pages of 1,000 objects that are listed without tasks, because a task for fewer costs more than it saves.
_FIRST_PAGES = 20
# A task costs about 60 pages of ranges that turn out empty; 10^7 keys take the time of 600 pages (simulated).
_MAX_TASKS = 32


class ListTask(Discreet, msgspec.Struct, frozen=True):
    """Some pages of the objects below a folder."""

    folder: str
    keys: KeyRange
    options: Mapping[str, object]


class ListedPages(msgspec.Struct, frozen=True):
    """The objects that a task has listed, in columns (sizes: int64 of this machine), and the range that is left."""

    urls: list[str]
    versions: list[str]
    sizes: bytes
    rest: KeyRange | None

    def records(self) -> list[ObjectRecord]:
        """Returns the objects."""
        return list(map(ObjectRecord, self.urls, array("q", self.sizes), self.versions))


class TaskLister:
    """Lists large prefixes on an executor if the store lists keys in order; a `manifest.protocols.Lister`."""

    def __init__(self, fetcher: Fetcher, runner: Runner, options: Mapping[str, object]) -> None:
        self._fetcher = fetcher
        self._runner = runner
        self._options = options

    async def list(self, url: str) -> AsyncIterator[Page]:
        """Lists as `ObjectStore.list` does, but the pages may come in another order."""
        pattern = Pattern.of(url)
        max_pages = _FIRST_PAGES if pattern.single and self._fetcher.lists_from(url) else None
        pages = await self._fetcher.list(url, enough=lambda found: len(found) == max_pages)
        if len(pages) == max_pages and not _has_sorted_keys(pages, pattern.folder):
            # A store that sorts differently, such as S3's directory buckets.
            max_pages = None
            pages = await self._fetcher.list(url)
        for page in pages:
            yield page
        if len(pages) == max_pages:
            async with aclosing(self._list_in_tasks(pattern.folder, pages[-1][-1].url)) as listed:
                async for page in listed:
                    yield page

    async def _list_in_tasks(self, folder: str, last: str) -> AsyncGenerator[Page, None]:
        ranges = KeyRanges(KeyRange(last[len(folder) :]), min(self._runner.most_tasks, _MAX_TASKS))

        def next_task() -> ListTask | None:
            keys = ranges.take()
            return None if keys is None else ListTask(folder, keys, self._options)

        async with aclosing(run_dynamic(self._runner, list_range, next_task)) as coming:
            async for listed in coming:
                ranges.finish(listed.rest)
                yield listed.records()


def list_range(task: ListTask) -> ListedPages:
    """Lists some pages; raises StoreError."""
    return asyncio.run(_list(task))


async def _list(task: ListTask) -> ListedPages:
    folder = task.folder
    keys = task.keys

    def enough(pages: Sequence[Page]) -> bool:
        last = pages[-1][-1].url[len(folder) :]
        return keys.ends_before(last) or (len(pages) >= keys.pages and last > keys.after and is_clean(last))

    async with Fetcher(FetchConfig(), StoreOpener(task.options)) as fetcher:
        pages = await fetcher.list(folder, after=folder + keys.after, enough=enough)
    found = [record for record in chain.from_iterable(pages) if keys.has(record.url[len(folder) :])]
    complete = not pages or not enough(pages)
    return ListedPages(
        [record.url for record in found],
        [record.version for record in found],
        array("q", [record.size for record in found]).tobytes(),
        None if complete else keys.rest(pages[-1][-1].url[len(folder) :]),
    )


def _has_sorted_keys(pages: Sequence[Page], folder: str) -> bool:
    """Whether keys ascend, and the last is one behind which a listing may begin."""
    urls = [record.url for page in pages for record in page]
    in_folder = urls[0].startswith(folder) and is_clean(urls[-1][len(folder) :])
    return in_folder and all(before < after for before, after in pairwise(urls))
