"""Indexes in tasks of an executor: lists a large prefix in ranges of keys, and indexes containers in groups.

`indexing/source.py` gives `TaskLister` and `IndexTasks` to a build. `shards/` opens stores with `StoreOpener`, and
lists its shards with `FetchedLists`, without tasks.
"""

from __future__ import annotations

import asyncio
import re
import string
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import chain, pairwise
from typing import TypeAlias

import msgspec
import numpy as np

from streamer.base.concurrency import map_concurrently
from streamer.config import FetchConfig
from streamer.errors import Discreet, ManifestError
from streamer.executors.runner import Runner, run_dynamic
from streamer.fetch import Fetcher
from streamer.indexing.build import BuildOptions
from streamer.indexing.container_rows import Budget, Container, Partial, index_container
from streamer.manifest.blocks import Block
from streamer.manifest.chunking import Cut
from streamer.manifest.model import Extent, ObjectRecord
from streamer.manifest.protocols import Examine, Examined, Indexer, Note, Short
from streamer.recode.work import Recoders, examine_here
from streamer.store import ObjectStore, open_store
from streamer.store.addresses.patterns import UrlPattern
from streamer.store.addresses.urls import Address

# Keys that every client sends unchanged. Some clients escape other characters, so that a key sorts at another place.
_CLEAN = re.compile(r"(?!\.{1,2}(/|$))[-.\w=]+(/(?!\.{1,2}(/|$))[-.\w=]+)*", re.ASCII)
_LETTERS = "".join(sorted(f"-./=_{string.digits}{string.ascii_letters}"))
# Characters behind the common beginning of two keys that `key_between` looks at.
_WINDOW = 6
# Most pages that one task lists: 64,000 keys, two to six seconds.
_MAX_PAGES = 64


class KeyRange(msgspec.Struct, frozen=True):
    """A range of keys that is to be listed.

    Attributes:
        after: the range begins behind this key.
        until: last key of the range; "" means that it has no end.
        pages: number of pages that the next task lists.
    """

    after: str
    until: str = ""
    pages: int = 1

    def has(self, key: str) -> bool:
        """Whether the key is in the range."""
        return self.after < key and not self.ends_before(key)

    def ends_before(self, key: str) -> bool:
        """Whether the key comes after the range."""
        return bool(self.until) and key > self.until

    def rest(self, last: str) -> KeyRange | None:
        """Returns the range behind the last listed key, with twice as many pages; None if nothing is left."""
        if self.until and last >= self.until:
            return None
        return KeyRange(last, self.until, min(2 * self.pages, _MAX_PAGES))


class KeyRanges:
    """Keeps the ranges that are still to be listed, and halves them so that there are enough for all tasks.

    Args:
        rest: the range to list.
        limit: tasks that run at the same time.
    """

    def __init__(self, rest: KeyRange, limit: int) -> None:
        self._waiting = deque([rest])
        self._limit = limit
        self._running = 0
        self._divide()

    def take(self) -> KeyRange | None:
        """Returns the next range to list, which then counts as running; None if there is none now."""
        if not self._waiting:
            return None
        self._running += 1
        return self._waiting.popleft()

    def finish(self, rest: KeyRange | None) -> None:
        """Records that a running range was listed but for its rest (None if it was listed to its end)."""
        self._running -= 1
        if rest is not None:
            self._waiting.append(rest)
        self._divide()

    def _divide(self) -> None:
        """Halves waiting ranges until as many are waiting or running as may run; a range may be too short for that."""
        whole: list[KeyRange] = []
        while self._waiting and self._running + len(self._waiting) + len(whole) < self._limit:
            found = self._waiting.popleft()
            if middle := key_between(found.after, found.until):
                self._waiting.append(KeyRange(found.after, middle))
                self._waiting.append(KeyRange(middle, found.until))
            else:
                whole.append(found)
        self._waiting.extend(whole)


def is_clean(key: str) -> bool:
    """Whether every client sends this key unchanged, so that a listing may begin behind it."""
    return _CLEAN.fullmatch(key) is not None


def key_between(after: str, until: str) -> str:
    """Returns a clean key about in the middle between two keys; "" if none is found. An empty `until` means no end."""
    same = 0
    while same < min(len(after), len(until)) and after[same] == until[same]:
        same += 1
    base = len(_LETTERS) + 1
    low = _number(after[same:], base)
    high = _number(until[same:], base) if until else base**_WINDOW
    number = (low + high) // 2
    digits = [number // base**place % base for place in reversed(range(_WINDOW))]
    while digits and digits[-1] == 0:
        digits.pop()
    text = "".join(_LETTERS[max(digit, 1) - 1] for digit in digits)
    for middle in (after[:same] + text, after[:same] + text.replace("/", "0")):
        if after < middle and (not until or middle < until) and is_clean(middle):
            return middle
    return ""


def _number(text: str, base: int) -> int:
    """Returns the first `_WINDOW` characters as digits of a number to a base; behind the end of the text they are 0."""
    number = 0
    for letter in text[:_WINDOW]:
        number = number * base + min(bisect_left(_LETTERS, letter) + 1, base - 1)
    return int(number * base ** (_WINDOW - len(text[:_WINDOW])))


# Objects in the order of their keys, as a store lists them at once.
Page = Sequence[ObjectRecord]
# The findings in a container, or the error for which it cannot be indexed.
Found: TypeAlias = Cut | list[Block] | Short | Partial | ManifestError
# Place of a container in its task, and what is found in it or a note about it; in any order.
Findings: TypeAlias = list[tuple[int, Found | Note]]
# Pages of 1,000 objects that are listed without tasks: for fewer, a task costs more than it saves.
_FIRST_PAGES = 20
# Most tasks that list at the same time. Each costs the time of about 60 pages, for ranges that turn out empty. With so
# many tasks, 10^7 keys take the time of 600 pages (simulated).
_MAX_TASKS = 32
# Most bytes and containers of a task. A task that dies is done again; one of 1 GB takes a second at 10 Gbit/s.
_TASK_BYTES = 1 << 30
_TASK_CONTAINERS = 256
# Tasks for each one that runs at the same time, at least: so the last ones end together.
_SHARES = 4


class StoreOpener(Discreet, msgspec.Struct, frozen=True):
    """Opens stores with given storage options; can be sent to other processes.

    Attributes:
        options: storage options as fsspec takes them.
    """

    options: Mapping[str, object]

    def __call__(self, url: str | Address) -> ObjectStore:
        """Opens the store of a url; raises ConfigError, see `open_store`."""
        return open_store(url, self.options)


class FetchedLists(msgspec.Struct, frozen=True):
    """Lists through a fetcher, with its retries and time limits; a `manifest.protocols.Lister`."""

    fetcher: Fetcher

    async def list(self, url: str) -> AsyncIterator[Sequence[ObjectRecord]]:
        """Yields pages as `ObjectStore.list` does, once all are listed; raises StoreError, ConfigError."""
        for page in await self.fetcher.list(url):
            yield page


class TaskReader:
    """Reads for an index in a task. An object that a recoder must examine is decoded in the task's own process."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._recoders = Recoders()
        self._one_object = asyncio.Lock()

    async def read(self, extent: Extent) -> bytes:
        """Returns exactly the bytes of `extent`; raises StoreError, ConfigError."""
        return await self._fetcher.read(extent)

    async def examine(self, asked: Examine) -> Examined:
        """Reads an object as a whole, recodes it as one block, and returns what `asked` wants to know; one at a time.

        Raises:
            ManifestError: the object cannot be decoded.
            StoreError: the object cannot be read.
            ConfigError: the format, or a library of it, is not installed.
        """
        async with self._one_object:
            content = await self.read(Extent(asked.object, 0, asked.object.size))
            return await asyncio.to_thread(examine_here, self._recoders, asked, content)


class ListTask(Discreet, msgspec.Struct, frozen=True):
    """A task that lists some pages of the objects below a folder.

    Attributes:
        folder: url of the folder.
        keys: range of keys below it, and number of pages.
        options: storage options as fsspec takes them.
    """

    folder: str
    keys: KeyRange
    options: Mapping[str, object]


class ListedPages(msgspec.Struct, frozen=True):
    """Result of a `ListTask`.

    Attributes:
        urls, versions: url and version of each listed object.
        sizes: length of each object in bytes, as int64 in the byte order of this machine.
        rest: range that is left of the task's; None if it was listed to its end.
    """

    urls: list[str]
    versions: list[str]
    sizes: bytes
    rest: KeyRange | None

    def records(self) -> list[ObjectRecord]:
        """Returns the listed objects."""
        return list(map(ObjectRecord, self.urls, array("q", self.sizes), self.versions))


class TaskLister:
    """Lists large prefixes on an executor if the store lists keys in order; a `manifest.protocols.Lister`.

    Args:
        fetcher: lists the first pages, and all of them where tasks do not help.
        runner: runs the tasks.
        options: storage options as fsspec takes them.
    """

    def __init__(self, fetcher: Fetcher, runner: Runner, options: Mapping[str, object]) -> None:
        self._fetcher = fetcher
        self._runner = runner
        self._options = options

    async def list(self, url: str) -> AsyncIterator[Page]:
        """Yields pages as `ObjectStore.list` does, but perhaps in another order.

        Raises:
            ConfigError: see `UrlPattern.parse`.
            StoreError: the store failed.
            Exception: another error of a task, see `run_all` of `executors/runner.py`.
        """
        pattern = UrlPattern.parse(url)
        max_pages = _FIRST_PAGES if pattern.single and self._fetcher.lists_from(url) else None
        pages = await self._fetcher.list(url, enough=lambda found: len(found) == max_pages)
        if len(pages) == max_pages and not _has_key_order(pages, pattern.folder):
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
        """Yields the objects below a folder whose urls come after `last`."""
        ranges = KeyRanges(KeyRange(last[len(folder) :]), min(self._runner.most_tasks, _MAX_TASKS))

        def next_task() -> ListTask | None:
            keys = ranges.take()
            return None if keys is None else ListTask(folder, keys, self._options)

        async with aclosing(run_dynamic(self._runner, list_range, next_task)) as coming:
            async for listed in coming:
                ranges.finish(listed.rest)
                yield listed.records()


def list_range(task: ListTask) -> ListedPages:
    """Lists some pages of the objects below a folder, in a task; raises StoreError, ConfigError."""
    return asyncio.run(_list(task))


async def _list(task: ListTask) -> ListedPages:
    """Does what `list_range` promises: ends behind a clean key, or at the end of the range."""
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


def _has_key_order(pages: Sequence[Page], folder: str) -> bool:
    """Whether the listed keys ascend, and the last one is clean, so that another listing may begin behind it."""
    urls = [record.url for page in pages for record in page]
    in_folder = urls[0].startswith(folder) and is_clean(urls[-1][len(folder) :])
    return in_folder and all(before < after for before, after in pairwise(urls))


class ContainersTask(Discreet, msgspec.Struct, frozen=True):
    """A task that indexes some containers.

    Attributes:
        first: place of the first one among all containers.
        containers: the containers.
        indexer: their format.
        options: storage options as fsspec takes them.
    """

    first: int
    containers: Sequence[Container]
    indexer: Indexer
    options: Mapping[str, object]


class IndexTasks(Discreet, msgspec.Struct, frozen=True):
    """Indexes containers on an executor; a `build.Elsewhere`.

    Attributes:
        runner: runs the tasks.
        options: storage options as fsspec takes them.
    """

    runner: Runner
    options: Mapping[str, object]

    async def __call__(
        self, containers: Sequence[Container], indexer: Indexer
    ) -> AsyncGenerator[tuple[int, Found | Note], None]:
        """Yields, in any order, the place of a container, and what is found in it, an error, or a note about it.

        Raises:
            StoreError: an object cannot be read.
            Exception: another error of a task, see `run_all` of `executors/runner.py`.
        """
        tasks = iter(
            ContainersTask(first, containers[first:stop], indexer, self.options)
            for first, stop in groups([each.record.size for each in containers], self.runner.most_tasks)
        )
        async with aclosing(run_dynamic(self.runner, index_containers, lambda: next(tasks, None))) as coming:
            async for first, some in coming:
                for place, found in some:
                    yield first + place, found


def groups(sizes: Sequence[int], most_tasks: int) -> Iterator[tuple[int, int]]:
    """Divides containers into tasks with about the same number of bytes; yields the half-open range of each.

    Args:
        sizes: sizes of the containers in bytes, in order.
        most_tasks: tasks that run at the same time.
    """
    limit = min(_TASK_BYTES, sum(sizes) // (_SHARES * most_tasks))
    first = filled = 0
    for number, size in enumerate(sizes):
        if number > first and (filled + size > limit or number - first == _TASK_CONTAINERS):
            yield first, number
            first = number
            filled = 0
        filled += size
    if sizes:
        yield first, len(sizes)


def index_containers(task: ContainersTask) -> tuple[int, Findings]:
    """Indexes containers in a task; returns `task.first` and the findings in each. Raises StoreError, ConfigError."""
    return task.first, asyncio.run(_index(task))


async def _index(task: ContainersTask) -> Findings:
    """Indexes the containers of a task, several at once; a damaged one is found as its error."""
    bounds = BuildOptions()
    sizes = np.array([container.record.size for container in task.containers], np.int64)
    budget = Budget.divide(bounds.memory_bytes, bounds.concurrency, sizes, 0)
    notes: Findings = []
    async with Fetcher(FetchConfig(), StoreOpener(task.options)) as fetcher:
        reader = TaskReader(fetcher)

        async def index(place: int) -> Found:
            try:
                return await index_container(
                    task.containers[place],
                    task.indexer,
                    reader,
                    ahead=budget.ahead,
                    on_chunk=None,
                    on_read=lambda need: None,
                    on_note=lambda note: notes.append((place, note)),
                )
            except ManifestError as error:
                return error

        found = await map_concurrently(index, range(len(task.containers)), budget.parallel_objects)
    return [*notes, *enumerate(found)]
