"""The manifest of what is packed: indexed, or read from a url."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from streamer.config import FetchConfig
from streamer.errors import ManifestError
from streamer.fetch import Fetcher
from streamer.formats.built_in import AUTO
from streamer.formats.detect import chooser
from streamer.manifest.builder.bounded_map import bounded_map
from streamer.manifest.builder.build import BuildOptions, build
from streamer.manifest.layout import ROOT_NAME
from streamer.manifest.model import Extent, ObjectRecord
from streamer.manifest.protocols import Progress
from streamer.manifest.table import Manifest
from streamer.manifest.transfer import install_files, listed_files
from streamer.store import ObjectStore, open_store
from streamer.store.urls import shown

_READS_AT_ONCE = 16


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset that is to be packed.

    Attributes:
        urls: prefixes, objects or patterns.
        format: its name, or "auto".
        format_options: of the format.
        extensions: of the raw files that are samples; None: see `formats.folder.class_folders`.
        manifest: where it was indexed to (`streamer index --out`); None: it is indexed.
        options: of its store, as fsspec takes them.
    """

    urls: tuple[str, ...]
    format: str = AUTO
    format_options: Mapping[str, object] = msgspec.field(default_factory=dict)
    extensions: tuple[str, ...] | None = None
    manifest: str | None = None
    options: Mapping[str, object] = msgspec.field(default_factory=dict)


class Opener(msgspec.Struct, frozen=True):
    """Opens stores with these options; crosses to other processes."""

    options: Mapping[str, object]

    def __call__(self, url: str) -> ObjectStore:
        """The store of a url."""
        return open_store(url, self.options)


class FetchedLists(msgspec.Struct, frozen=True):
    """Lists through a fetcher, with its patience."""

    fetcher: Fetcher

    async def list(self, url: str) -> AsyncIterator[Sequence[ObjectRecord]]:
        """As `ObjectStore.list`."""
        for page in await self.fetcher.list(url):
            yield page


async def manifest_of_source(
    source: Source, folder: Path, on_note: Callable[[str], None], on_progress: Callable[[Progress], None]
) -> Manifest:
    """Indexes what is packed, or reads its manifest.

    Args:
        source: what is packed.
        folder: where the manifest is written on this machine.
        on_note: takes a line about files that are no samples.
        on_progress: called after each window of an index.

    Raises:
        ManifestError, ConfigError, StoreError: see `manifest.builder.build`.
    """
    async with Fetcher(FetchConfig(), Opener(source.options)) as fetcher:
        if source.manifest is not None:
            files = await manifest_files(fetcher, source.manifest)
            return install_files(files, folder, shown(source.manifest))
        return await build(
            source.urls,
            folder,
            lister=FetchedLists(fetcher),
            reader=fetcher,
            choose_format=chooser(source.format, source.format_options, extensions=source.extensions, on_note=on_note),
            options=BuildOptions(on_progress=on_progress),
        )


async def manifest_files(fetcher: Fetcher, url: str) -> list[tuple[str, bytes]]:
    """The files of the manifest at a url, by name; other objects there do not matter.

    Raises:
        ManifestError: there is none.
        StoreError: from the store.
    """
    folder = f"{url.rstrip('/')}/"
    files = listed_files([record for page in await fetcher.list(folder) for record in page])
    if not files:
        raise ManifestError(f"{shown(folder)} has no {ROOT_NAME}: no manifest is there", url=shown(folder))

    async def read(name: str) -> tuple[str, bytes]:
        return name, await fetcher.read(Extent(files[name], 0, files[name].size))

    return await bounded_map(read, sorted(files), _READS_AT_ONCE)
