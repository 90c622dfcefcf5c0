"""Annotations of a source: parsed once, put beside the receipts, joined by the tasks."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec

from streamer.annotations.join import JoinRules
from streamer.annotations.options import Annotations, TableOptions
from streamer.annotations.table import HEAD_NAME, ROWS_NAME, AnnotationTable
from streamer.base.paths import absolute
from streamer.config import FetchConfig
from streamer.errors import ConfigError
from streamer.fetch import Fetcher
from streamer.indexing.tasks import StoreOpener
from streamer.manifest.staging import settle, workplace
from streamer.recode.annotations import build_table_here, fetch_file
from streamer.shards.destination import Destination
from streamer.shards.job import Job
from streamer.shards.spool import open_spool, spool_folder

_FILES = (ROWS_NAME, HEAD_NAME)


async def make_table(annotations: Annotations, options: Mapping[str, object], root: Path) -> Path:
    """Makes the table of a file of annotations, in a folder below `root`, and returns that folder.

    Raises:
        ManifestError: it cannot be parsed, for a reason that the error names.
        ConfigError: a key or field that it does not have, several files, or a missing library.
        StoreError: it cannot be read.
    """
    url = absolute(annotations.url)
    async with Fetcher(FetchConfig(), StoreOpener(options)) as fetcher:
        records = [record for page in await fetcher.list(url) for record in page]
        if len(records) != 1:
            raise ConfigError(f"annotations={url!r}: {len(records)} objects, not one file", field="annotations")
        fields = None if annotations.fields is None else tuple(annotations.fields)
        return await build_table_here(TableOptions(url, annotations.key, fields), records[0], root, fetcher)


async def put_table(job: Job, options: Mapping[str, object], table: Path) -> None:
    """Puts a table beside the receipts, where tasks on other machines find it."""
    async with Destination(job.url, options) as destination:
        for name in _FILES:
            with open_spool(spool_folder(job), 0) as place:
                shutil.copyfile(table / name, place)
                await destination.put_file(f"{job.table_folder(table.name)}{name}", place)


async def rules_here(destination: Destination, job: Job, rules: JoinRules) -> JoinRules:
    """The rules, with a table on this machine: the one that was made here, else a copy for all of its processes.

    Raises:
        ManifestError: it cannot be written.
        StoreError: it cannot be read.
    """
    if rules.table.is_dir():
        return rules
    target = spool_folder(job) / rules.digest
    if not target.is_dir():
        folder = job.table_folder(rules.digest)
        records = await destination.records(folder)
        with workplace(target.parent) as place:
            for name in _FILES:
                await fetch_file(records[folder + name], place / name, destination.fetcher)
            settle(place, target, durable=False, check=AnnotationTable.open_and_verify)
    return msgspec.structs.replace(rules, table=target)
