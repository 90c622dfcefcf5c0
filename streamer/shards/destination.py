"""Reads and writes the objects at the destination of a pack: shards, receipts, description and manifest.

All of `shards/` works on a destination by it. The commands `pack` and `verify` spell urls with `folder_url`.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from streamer.base.concurrency import map_concurrently
from streamer.config import FetchConfig
from streamer.errors import ConfigError, ObjectChangedError, ObjectNotFoundError, StoreError
from streamer.fetch import Fetcher
from streamer.indexing.tasks import StoreOpener
from streamer.manifest.beside import BESIDE
from streamer.manifest.model import Extent, ObjectRecord
from streamer.manifest.table import Manifest
from streamer.manifest.transfer import export_files
from streamer.shards.job import DESCRIPTION_NAME, FOLDER, Job
from streamer.shards.receipts import Receipt, decode_receipt, encode_receipt
from streamer.store.addresses.urls import shown, split
from streamer.store.base import Upload

logger = logging.getLogger(__name__)

_READS_AT_ONCE = 16


def _read_description(content: bytes) -> dict[str, object]:
    """Returns what a pack wrote about its job; empty if that is damaged, as one that was cut off."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


class Destination:
    """Reads and writes objects below a url; async context manager.

    All methods but `list_uploads` and `abort` raise StoreError if the store fails, ConfigError if none can be opened.

    Args:
        url: url of the destination, ending in a slash.
        options: its storage options.

    Attributes:
        url: url of the destination.
        fetcher: reads and writes there.
    """

    def __init__(self, url: str, options: Mapping[str, object]) -> None:
        self.url = url
        self.fetcher = Fetcher(FetchConfig(), StoreOpener(options))

    async def __aenter__(self) -> Self:
        await self.fetcher.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.fetcher.__aexit__(kind, error, trace)

    async def records(self, name: str = "") -> dict[str, ObjectRecord]:
        """Returns the object of a name, or the objects below a folder, by their names below the url; {} if none."""
        try:
            pages = await self.fetcher.list(self.url + name)
        except ObjectNotFoundError:
            return {}
        return {record.url[len(self.url) :]: record for page in pages for record in page}

    async def receipts(self, names: Sequence[str], records: Mapping[str, ObjectRecord]) -> dict[int, Receipt]:
        """Reads the receipts that exist, and returns them by number of their shard.

        Args:
            names: names of receipts.
            records: objects of the destination by name; names that are missing there are left out, and so are
                objects that are no receipts.
        """
        there = [records[name] for name in names if name in records]
        found = await map_concurrently(self._receipt, there, _READS_AT_ONCE)
        return {receipt.shard: receipt for receipt in found if receipt is not None}

    async def put_receipt(self, job: Job, receipt: Receipt) -> None:
        """Writes the receipt of a finished shard."""
        await self.fetcher.put(self.url + job.receipt_name(receipt.shard), encode_receipt(receipt))

    async def put_file(self, name: str, path: Path) -> ObjectRecord:
        """Uploads a local file as `name` below the url. A file of the local store may be moved instead of copied."""
        return await self.fetcher.put_file(self.url + name, path)

    async def claim(self, job: Job, records: Mapping[str, ObjectRecord]) -> None:
        """Writes the description of a job to the destination, unless the job has written there before.

        Args:
            job: the job that is to write here.
            records: all objects of the destination.

        Raises:
            ConfigError: another job has written here, or other objects are here. The error says what differs.
        """
        where = shown(self.url)
        jobs = {name[len(FOLDER) :].partition("/")[0] for name in records if name.startswith(FOLDER)}
        if other := min(jobs - {job.id}, default=""):
            record = records.get(f"{FOLDER}{other}/{DESCRIPTION_NAME}")
            theirs = {} if record is None else _read_description(await self._read(record))
            ours = job.described
            names = sorted(name for name in theirs.keys() | ours.keys() if theirs.get(name) != ours.get(name))
            parts = ", ".join(f"{name} {theirs.get(name)!r} and not {ours.get(name)!r}" for name in names)
            differs = f"with {parts}" if theirs else "whose description is lost or damaged"
            raise ConfigError(
                f"{where} holds the shards of another pack, {differs}; repeat that one to go on with it, or choose an "
                "empty destination",
                field="url",
            )
        if records and not jobs:
            raise ConfigError(
                f"{where} is not empty: {len(records)} objects, the first is {min(records)}; choose an empty one",
                field="url",
            )
        if not jobs:
            text = json.dumps(job.described, indent=1, sort_keys=True)
            await self.fetcher.put(f"{self.url}{job.folder}{DESCRIPTION_NAME}", text.encode())

    async def list_uploads(self, job: Job) -> Sequence[Upload]:
        """Returns unfinished uploads of shards, of packs that were killed or are running.

        Returns () if the store keeps no parts of uploads, or refuses to list them.
        """
        keeper = self.fetcher.parts_keeper(self.url)
        if keeper is None:
            return ()
        try:
            return await keeper.list_partial_uploads(self.url + job.prefix)
        except (StoreError, ConfigError) as error:
            logger.info(
                "whether earlier packs have left parts of uploads at %s is not known: %s", shown(self.url), error
            )
            return ()

    async def abort(self, uploads: Sequence[Upload]) -> None:
        """Removes the parts of unfinished uploads; only logs it if the store refuses."""
        keeper = self.fetcher.parts_keeper(self.url)
        if keeper is None:
            return
        for upload in uploads:
            try:
                await keeper.abort(upload)
                logger.info("removed the parts of an upload of %s that was never finished", shown(upload.url))
            except StoreError as error:
                logger.warning("the parts of an unfinished upload stay: %s", error)

    async def put_manifest(self, manifest: Manifest) -> None:
        """Writes the files of the manifest below the url, the root last: where it is, all other files are.

        Raises:
            OSError: a file of the manifest cannot be read.
        """
        for name, content in export_files(manifest):
            await self.fetcher.put(f"{self.url}{BESIDE}{name}", content)

    async def _receipt(self, record: ObjectRecord) -> Receipt | None:
        """Reads a receipt; returns None if it is damaged, or another pack of the same job is just writing it."""
        try:
            return decode_receipt(await self._read(record))
        except (ObjectChangedError, ObjectNotFoundError):
            return None

    async def _read(self, record: ObjectRecord) -> bytes:
        return await self.fetcher.read(Extent(record, 0, record.size))


def files_of(job: Job, receipt: Receipt) -> dict[str, tuple[int, str]]:
    """Returns size and version of each file of a shard, by name: the shard, and its index file if it has one."""
    files = {job.shard_name(receipt.shard): (receipt.size, receipt.version)}
    if receipt.index_size:
        files[job.index_name(receipt.shard)] = (receipt.index_size, receipt.index_version)
    return files


def agrees(job: Job, receipt: Receipt, records: Mapping[str, ObjectRecord]) -> bool:
    """Returns whether all files of a shard are in `records` with the sizes and versions of its receipt."""
    expected = files_of(job, receipt)
    return expected == {name: (records[name].size, records[name].version) for name in expected if name in records}


def folder_url(url: str) -> str:
    """Returns the url of a folder as listings spell it, with a slash at its end.

    A file url or relative path becomes an absolute local path. The scheme of other urls is in lower case.

    Raises:
        ConfigError: the url is empty, or has a scheme without a bucket or host.
    """
    if split(url).scheme == "file":
        return f"{os.path.abspath(split(url).key).rstrip('/')}/"
    scheme, _, rest = url.partition("://")
    return f"{scheme.lower()}://{rest.rstrip('/')}/"
