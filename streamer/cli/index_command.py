"""Implements `streamer index`, which builds the manifest of a dataset, and copies it if asked. `main.py` runs it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from streamer.base.temporary import open_temporary_folder
from streamer.base.user_urls import absolute
from streamer.cli.exit_codes import Exit
from streamer.cli.options import (
    add_cache_dir,
    add_executor,
    add_sample_choice,
    add_storage_options,
    add_urls,
    size_or_auto,
)
from streamer.cli.terminal import ProgressLine, Terminal
from streamer.config import counted
from streamer.errors import ConfigError

if TYPE_CHECKING:
    from streamer.client.engine_client import EngineClient
    from streamer.manifest.table import Manifest
    from streamer.wire.messages import GetManifest

HELP = "list a dataset once, and write its manifest"

DESCRIPTION = """\
Lists the objects below the urls, finds the samples in them, and builds the manifest: the table of objects, chunks and
samples that training needs.
"""

EXAMPLES = """\
examples:
  streamer index ./data/
  streamer index s3://bucket/train/shard-{000000..001023}.tar
  # for everyone who reads this prefix, or for those who pass manifest=URL
  streamer index s3://bucket/train/ --beside
  streamer index s3://bucket/train/ --out s3://bucket/manifests/train/
  # fields for select(where="json.width >= 256")
  streamer index s3://bucket/train/ --columns json.width,json.lang
  # in 16 processes, without an engine
  streamer index s3://bucket/raw/ --beside --executor processes:16
"""

NOTES = """\
Tars are read through once, unless an earlier manifest has them or an index file lies beside them; of raw files the
listing is enough. The manifest goes into the cache folder, where jobs on this machine find it, and what was read stays
in the cache while there is room. With --executor, processes or a cluster index the data in tasks, without an engine or
a cache: large prefixes are listed in parts.
"""

# Names of classes that are shown; more are counted.
_CLASSES_SHOWN = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    dataset = parser.add_argument_group("dataset")
    add_urls(dataset)
    add_sample_choice(dataset)
    add_storage_options(dataset)
    output = parser.add_argument_group("manifest")
    output.add_argument("--out", metavar="URL", help="also copy the manifest to this url or folder")
    output.add_argument(
        "--beside",
        action="store_true",
        help="also copy it beside the data, into .streamer/, where every engine looks for it",
    )
    output.add_argument(
        "--chunk-bytes",
        type=size_or_auto,
        metavar="SIZE",
        help="how much is fetched and cached together (default: auto; jobs find another one by manifest=)",
    )
    output.add_argument(
        "--columns",
        type=_names,
        default=(),
        metavar="NAMES",
        help="fields of the samples, as width,json.lang, kept and copied with the manifest, for "
        "select(where=...), and __key__ for index_of(key); reads only these columns of Parquet, else all bytes",
    )
    machine = parser.add_argument_group("machine")
    add_executor(machine, default=None)
    add_cache_dir(machine)
    parser.set_defaults(manifest=None)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Builds the manifest, copies it to the place of --out or --beside, and describes the dataset.

    Raises:
        ConfigError: an option is invalid.
        StreamerError: no engine can be asked, or the manifest cannot be built or copied.
        OSError: the folder of --out cannot be made.
    """
    if arguments.urls[0].endswith(".toml"):
        raise ConfigError(
            "files of mixes are not read any more: in Python, MixedDataset({...}).explain(batch_size) says the same "
            "(docs/mixing.md)",
            field="urls",
        )
    from streamer.cli.dataset import describe_dataset

    with _open_manifest(arguments, terminal) as (manifest, fallback_dir):
        where = arguments.out or str(manifest.path)
        if arguments.out:
            _export(manifest, fallback_dir, absolute(arguments.out), arguments.storage_options)
        if arguments.beside:
            where = _manifest_url_beside(manifest, arguments.urls)
            _export(manifest, fallback_dir, where, arguments.storage_options)
        describe_dataset(manifest, terminal)
        terminal.line(f"manifest: {where}")
        if manifest.classes:
            shown = ", ".join(manifest.classes[:_CLASSES_SHOWN])
            more = " ..." if len(manifest.classes) > _CLASSES_SHOWN else ""
            terminal.line(
                f"{len(manifest.classes):,} {'class' if len(manifest.classes) == 1 else 'classes'}: {shown}{more}"
            )
    return Exit.DONE


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of names as width,lang")
    return names


@contextmanager
def _open_manifest(arguments: argparse.Namespace, terminal: Terminal) -> Iterator[tuple[Manifest, Path]]:
    """Builds the manifest by the engine of this machine, or in tasks with --executor, and adds the --columns.

    Yields:
        The manifest, and the folder of its columns where the manifest's own folder cannot be written. In tasks both are
        in a temporary folder, which is removed at the end of the block.
    """
    if arguments.executor is None:
        from streamer.cli.dataset import client_settings, open_manifest, request_of
        from streamer.client.engine_client import EngineClient

        with EngineClient(client_settings(arguments)) as client:
            manifest = open_manifest(client, arguments, terminal, arguments.chunk_bytes)
            if arguments.columns:
                _add_columns(manifest, client, request_of(arguments), arguments.columns)
                terminal.line(f"columns: {', '.join(arguments.columns)}")
            fallback_dir = client.fallback_dir
        yield manifest, fallback_dir
        return
    notes: list[str] = []
    with open_temporary_folder("index") as folder:
        with terminal.progress("indexing", "bytes") as bar:
            manifest = _build_in_tasks(arguments, folder, bar, notes)
        for note in notes:
            terminal.note(note)
        yield manifest, folder


def _add_columns(manifest: Manifest, client: EngineClient, request: GetManifest, names: Sequence[str]) -> None:
    """Reads the named fields of all samples, and keeps them beside the manifest; sorts the keys if they are among them.

    Sorted keys are found without reading all of them.
    """
    from contextlib import closing

    from streamer.batches.scan import KEY
    from streamer.client.engine_client import EngineClient
    from streamer.loader.members.columns import SampleColumns
    from streamer.loader.members.connections import EngineConnections
    from streamer.loader.members.keys import KeyReader, keep_keys

    with closing(EngineConnections(lambda: EngineClient(client.settings))) as connections:
        SampleColumns(manifest, None, client.fallback_dir, connections=connections, request=request).read(names)
        if KEY in names:
            # The keys come from the column, so that no sample is read again.
            keep_keys(KeyReader(manifest, connections, KEY, fallback_dir=client.fallback_dir))


def _build_in_tasks(arguments: argparse.Namespace, folder: Path, bar: ProgressLine, notes: list[str]) -> Manifest:
    """Builds the manifest in tasks of an executor, without an engine or a cache, and writes it to the folder.

    Raises:
        ConfigError: the options do not go with --executor.
    """
    import asyncio

    from streamer.executors.runner import runner
    from streamer.indexing.build import BuildOptions
    from streamer.indexing.source import DatasetSource, manifest_of_source

    if arguments.columns:
        names = ",".join(arguments.columns)
        raise ConfigError(
            "--columns are read by the engine of this machine, and with --executor there is none: index with "
            f"--executor and --beside, then `streamer index {arguments.urls[0]} --columns {names} --beside` adds them",
            field="columns",
        )
    if not arguments.out and not arguments.beside:
        raise ConfigError(
            "--executor needs --out or --beside: there is no engine that keeps the manifest", field="executor"
        )
    source = DatasetSource(
        urls=tuple(map(absolute, arguments.urls)),
        format=arguments.format,
        format_options=arguments.format_options,
        extensions=tuple(arguments.extensions) if arguments.extensions else None,
        earlier=absolute(arguments.out) if arguments.out else None,
        options=arguments.storage_options,
    )
    options = BuildOptions(
        chunk_bytes=arguments.chunk_bytes or "auto",
        in_key_order=arguments.no_shuffle,
        on_damage=notes.append if arguments.damaged == "skip" else None,
        on_progress=lambda step: bar.update(step.bytes_done, step.total_bytes, f"{counted(step.samples, 'samples')}"),
    )
    with runner(arguments.executor) as running:
        return asyncio.run(manifest_of_source(source, folder, running, options, on_note=notes.append))


def _manifest_url_beside(manifest: Manifest, urls: Sequence[str]) -> str:
    """Returns the url beside the data where engines look for the manifest; ConfigError if the urls have none."""
    from streamer.manifest.beside import BESIDE

    if manifest.whole_objects:
        raise ConfigError("--beside: of raw files the listing is enough; leave it out", field="beside")
    base = manifest.content.base.removeprefix("file://")
    if len(urls) != 1 or f"{absolute(urls[0]).removeprefix('file://').rstrip('/')}/" != base:
        raise ConfigError(
            f"--beside: {', '.join(urls)} is not the one folder (or prefix) in which all objects are; name that, or "
            "pass --out",
            field="beside",
        )
    return f"{base}{BESIDE}"


def _export(manifest: Manifest, fallback_dir: Path, url: str, options: Mapping[str, object]) -> None:
    """Copies columns and manifest to a folder or url.

    The root of the manifest comes last: a reader that finds it finds the other files, too.
    """
    import asyncio
    from itertools import chain

    from streamer.manifest.column_files import ColumnFiles
    from streamer.manifest.transfer import export_files
    from streamer.store import open_store

    async def copy() -> None:
        store = open_store(url, options)
        try:
            for name, content in chain(ColumnFiles(manifest, fallback_dir).export(), export_files(manifest)):
                await store.put(f"{url.rstrip('/')}/{name}", content)
        finally:
            await store.aclose()

    if "://" not in url:
        Path(url).mkdir(parents=True, exist_ok=True)
    asyncio.run(copy())
