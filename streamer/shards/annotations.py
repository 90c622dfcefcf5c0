"""Makes the table of a source's annotations, uploads it beside the receipts, and fetches it for tasks.

`prepared.py` makes the table when a pack begins. `sources.py` uploads it, and fetches it on the machine of each task.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec

from streamer.annotations.join import JoinRules
from streamer.annotations.options import Annotations, TableOptions
from streamer.annotations.table import HEAD_NAME, ROWS_NAME, AnnotationTable
from streamer.base.user_urls import absolute
from streamer.config import FetchConfig
from streamer.errors import ConfigError, PackError
from streamer.fetch import Fetcher
from streamer.indexing.tasks import StoreOpener
from streamer.manifest.staging import settle, workplace
from streamer.recode.annotations import build_table_here, fetch_file
from streamer.shards.destination import Destination
from streamer.shards.job import Job
from streamer.shards.spool import open_spool, spool_folder
from streamer.store.addresses.urls import shown

_FILES = (ROWS_NAME, HEAD_NAME)


async def make_table(annotations: Annotations, options: Mapping[str, object], root: Path) -> Path:
    """Makes the table of a file of annotations, in a new folder below `root`, and returns that folder.

    Args:
        annotations: the file, and its options.
        options: storage options of the file.
        root: folder of the pack for temporary files.

    Raises:
        ManifestError: the file cannot be parsed, which the error gives as the reason, or the disk cannot be written.
        ConfigError: the url is not one file, the file lacks a key or field, or a library is missing.
        StoreError: the file cannot be read.
    """
    url = absolute(annotations.url)
    async with Fetcher(FetchConfig(), StoreOpener(options)) as fetcher:
        records = [record for page in await fetcher.list(url) for record in page]
        if len(records) != 1:
            raise ConfigError(f"annotations={url!r}: {len(records)} objects, not one file", field="annotations")
        fields = None if annotations.fields is None else tuple(annotations.fields)
        return await build_table_here(TableOptions(url, annotations.key, fields), records[0], root, fetcher)


async def put_table(job: Job, options: Mapping[str, object], table: Path) -> None:
    """Uploads the files of a table to the job's folder at the destination, where tasks on other machines find them.

    Args:
        job: the pack.
        options: storage options of the destination.
        table: folder of the table.

    Raises:
        PackError: the disk for temporary files is full.
        StoreError: the destination cannot be written.
        ConfigError, OSError: the destination is no url, or the folder for temporary files cannot be made.
    """
    async with Destination(job.url, options) as destination:
        for name in _FILES:
            with open_spool(spool_folder(job), 0) as place:
                shutil.copyfile(table / name, place)
                await destination.put_file(f"{job.table_folder(table.name)}{name}", place)


async def rules_here(destination: Destination, job: Job, rules: JoinRules) -> JoinRules:
    """Returns the rules with a table that is on this machine: as they are, or with a copy that is downloaded once.

    Processes of one machine share the copy.

    Raises:
        ManifestError: the copy cannot be written.
        PackError: the destination does not have the table any more.
        StoreError: the destination cannot be read.
        ConfigError: see `spool_folder`.
    """
    if rules.table.is_dir():
        return rules
    target = spool_folder(job) / rules.digest
    if not target.is_dir():
        folder = job.table_folder(rules.digest)
        records = await destination.records(folder)
        if missing := [name for name in _FILES if folder + name not in records]:
            raise PackError(
                f"{shown(destination.url)} lacks {folder}{missing[0]}, a part of the table of annotations that this "
                "pack has put there: leave .streamer/ alone while a pack runs, and run it again",
                url=shown(destination.url),
            )
        with workplace(target.parent) as place:
            for name in _FILES:
                await fetch_file(records[folder + name], place / name, destination.fetcher)
            settle(place, target, durable=False, check=AnnotationTable.open_and_verify)
    return msgspec.structs.replace(rules, table=target)
