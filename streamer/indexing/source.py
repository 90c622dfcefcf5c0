"""Makes the manifest of a dataset without an engine: indexes it on an executor, or reads it from a url.

Used by `streamer index --executor` (`cli/index_command.py`) and `streamer pack` (`shards/prepared.py`), which verifies
by it what it has published (`shards/verify.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from streamer.base.concurrency import map_concurrently
from streamer.config import FetchConfig
from streamer.errors import Discreet, ManifestError, ObjectNotFoundError
from streamer.executors.runner import Runner
from streamer.fetch import Fetcher
from streamer.formats import AUTO
from streamer.formats.detect import chooser
from streamer.indexing.build import BuildOptions, build
from streamer.indexing.tasks import IndexTasks, StoreOpener, TaskLister
from streamer.manifest.beside import BESIDE
from streamer.manifest.layout import ROOT_NAME
from streamer.manifest.model import Extent
from streamer.manifest.table import Manifest
from streamer.manifest.transfer import install_files, select_files
from streamer.store.addresses.patterns import UrlPattern, brace_order
from streamer.store.addresses.urls import shown

_READS_AT_ONCE = 16


class DatasetSource(Discreet, msgspec.Struct, frozen=True, kw_only=True):
    """Says where a dataset is and how it is read.

    Attributes:
        urls: prefixes, objects or patterns.
        format: name of the format, or "auto".
        format_options: options of the format.
        extensions: extensions of the raw files that are samples. None means the usual ones (`formats/folder.py`).
        manifest: url of a built manifest (`streamer index --out`). None means that the dataset is indexed.
        earlier: url where an earlier index may have left a manifest, such as beside the data, or None if there is none.
            Containers that have not changed since then are not read again.
        options: storage options as fsspec takes them.
    """

    urls: tuple[str, ...]
    format: str = AUTO
    format_options: Mapping[str, object] = msgspec.field(default_factory=dict)
    extensions: tuple[str, ...] | None = None
    manifest: str | None = None
    earlier: str | None = None
    options: Mapping[str, object] = msgspec.field(default_factory=dict)


async def manifest_of_source(
    source: DatasetSource,
    folder: Path,
    runner: Runner,
    options: BuildOptions,
    on_note: Callable[[str], None] = lambda note: None,
) -> Manifest:
    """Writes the manifest of a dataset to a local folder and opens it: indexes in tasks, or reads it from a url.

    Args:
        source: the dataset.
        folder: folder of manifests on the local disk.
        runner: runs the tasks.
        options: options of the build; `known`, `elsewhere`, `on_note` and `order_of` are set here. A manifest that is
            read from a url ignores them.
        on_note: called with a line about what gives no sample, about splits, and for each note of the indexes.

    Raises:
        ManifestError: there is no such manifest, or it is damaged, or see `build`.
        ConfigError, StoreError: the url of a manifest cannot be opened or read, or see `build`.
        Exception: another error of a task, see `run_all` of `executors/runner.py`.
    """
    async with Fetcher(FetchConfig(), StoreOpener(source.options)) as fetcher:
        if source.manifest is not None:
            files = await manifest_files(fetcher, source.manifest)
            return install_files(files, folder, shown(source.manifest))
        # Earlier indexes of these objects may have left manifests at these urls.
        places = [source.earlier] if source.earlier else []
        if len(source.urls) == 1 and UrlPattern.parse(source.urls[0]).single:
            places.append(f"{source.urls[0].rstrip('/')}/{BESIDE}")
        known = []
        for place in places:
            with suppress(ManifestError, ObjectNotFoundError):
                known.append(install_files(await manifest_files(fetcher, place), folder, shown(place)))
        return await build(
            source.urls,
            folder,
            lister=TaskLister(fetcher, runner, source.options),
            reader=fetcher,
            choose_format=chooser(source.format, source.format_options, extensions=source.extensions, on_note=on_note),
            options=msgspec.structs.replace(
                options,
                known=known,
                elsewhere=IndexTasks(runner, source.options),
                on_note=on_note,
                order_of=brace_order,
            ),
        )


async def manifest_files(fetcher: Fetcher, url: str) -> list[tuple[str, bytes]]:
    """Reads the files of the manifest at a url; returns (name, content) of each, by name.

    Raises:
        ManifestError: there is no manifest.
        ObjectNotFoundError: there is no such prefix, or a file was removed after the listing.
        StoreError, ConfigError: the store failed, or cannot be opened.
    """
    folder = f"{url.rstrip('/')}/"
    files = select_files([record for page in await fetcher.list(folder) for record in page])
    if not files:
        raise ManifestError(f"{shown(folder)} has no {ROOT_NAME}: no manifest is there", url=shown(folder))

    async def read(name: str) -> tuple[str, bytes]:
        return name, await fetcher.read(Extent(files[name], 0, files[name].size))

    return await map_concurrently(read, sorted(files), _READS_AT_ONCE)
