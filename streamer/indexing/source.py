"""Makes the manifest of a dataset: indexes it on an executor, or reads it from a url."""

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
    """A dataset.

    Attributes:
        urls: prefixes, objects or patterns.
        format: its name, or "auto".
        format_options: options of the format.
        extensions: extensions of the raw files that are samples; None: see `formats.folder.class_folders`.
        manifest: url of a built manifest (`streamer index --out`); None: the dataset is indexed.
        earlier: url where an earlier index may have left a manifest, such as beside the data: containers that have not
            changed since then are not read again.
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
    """Writes the manifest of a dataset to a local folder: indexes it in tasks, or reads it from a url.

    Args:
        source: the dataset.
        folder: folder for the manifest.
        runner: runs the tasks.
        options: options of the build. The runner decides where it runs.
        on_note: called with a line about what gives no sample.
    """
    async with Fetcher(FetchConfig(), StoreOpener(source.options)) as fetcher:
        if source.manifest is not None:
            files = await manifest_files(fetcher, source.manifest)
            return install_files(files, folder, shown(source.manifest))
        # Places of earlier indexes of these objects.
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
    """Returns the files of the manifest at a url, by name; raises ManifestError if there is none."""
    folder = f"{url.rstrip('/')}/"
    files = select_files([record for page in await fetcher.list(folder) for record in page])
    if not files:
        raise ManifestError(f"{shown(folder)} has no {ROOT_NAME}: no manifest is there", url=shown(folder))

    async def read(name: str) -> tuple[str, bytes]:
        return name, await fetcher.read(Extent(files[name], 0, files[name].size))

    return await map_concurrently(read, sorted(files), _READS_AT_ONCE)
