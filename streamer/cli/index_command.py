"""`streamer index`."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from streamer.base.paths import absolute
from streamer.cli.exit_codes import Exit
from streamer.cli.options import add_cache_dir, add_on, add_sample_choice, add_storage_options, count_of, size_or_auto
from streamer.cli.terminal import ProgressLine, Terminal
from streamer.config import counted, format_bytes
from streamer.errors import ConfigError

if TYPE_CHECKING:
    from streamer.client.engine_client import EngineClient
    from streamer.manifest.table import Manifest
    from streamer.wire.messages import GetManifest

HELP = "find out what a dataset has, once, and write it down"

DESCRIPTION = """\
Lists the objects below the urls, finds the samples in them, and builds the manifest: the table of objects, chunks
and samples that training needs. Tars are read through once, unless an earlier manifest has them or an index file lies
beside them; of raw files the listing is enough. The manifest goes into the cache folder, where jobs on this machine
find it, with --out also to a url that other machines can read (StreamingDataset(..., manifest=URL)), and with --beside
into the folder of the data, where every engine finds it. What was read stays in the cache while there is room. With
--on, processes or a cluster index it in tasks, without an engine or a cache: large prefixes are listed in parts.
"""

EXAMPLES = """\
examples:
  streamer index s3://bucket/train/ --out s3://bucket/manifests/train/
  streamer index s3://bucket/train/ --beside   for everyone who reads this prefix
  streamer index s3://bucket/train/shard-{000000..001023}.tar
  streamer index gs://bucket/images/ --format folder --storage-options @options.json
  streamer index ./data/                     a local folder works as well
  streamer index s3://bucket/train/ --explain 4096 --nodes 4
  streamer index s3://bucket/tokens/ --packing 8192 --explain 256    rows for Packing(8192), and what they give
  streamer index s3://bucket/texts/ --measure job:count --cost costs.npy    job.py: def count(sample): return ...
  streamer index s3://bucket/raw/ --out s3://bucket/manifests/raw/ --on processes:16
  streamer index s3://bucket/train/ --columns json.width,json.lang   for select(where="json.width >= 256")
"""

_CLASSES_SHOWN = 8
# Samples below which a further process takes longer to start than to count them.
_FOR_A_WORKER = 2048


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument(
        "urls",
        nargs="+",
        metavar="URL",
        help="a prefix, an object, or a pattern",
    )
    parser.add_argument("--out", metavar="URL", help="copy the manifest to this url or folder")
    parser.add_argument(
        "--beside",
        action="store_true",
        help="copy it beside the data, into .streamer/, where every engine looks for it",
    )
    add_sample_choice(parser)
    parser.add_argument(
        "--chunk-bytes",
        type=size_or_auto,
        metavar="SIZE",
        help="how much is fetched and cached together (default: auto; for jobs to find another, tell them manifest=)",
    )
    parser.add_argument(
        "--columns",
        type=_names,
        default=(),
        metavar="NAMES",
        help="fields of the samples, as width,json.lang, kept and copied with the manifest, for "
        "select(where=...), and __key__ for index_of(key); reads only these columns of Parquet, else all bytes",
    )
    parser.add_argument(
        "--explain",
        type=int,
        metavar="BATCH",
        help="say how well a global batch of so many samples is shuffled, and what it keeps open",
    )
    _add_rows(parser)
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="machines, for --explain (default: 1)")
    parser.add_argument("--seed", type=int, default=17, metavar="N", help="of the order, for --explain (default: 17)")
    add_on(parser, default=None)
    add_storage_options(parser)
    add_cache_dir(parser)
    parser.set_defaults(manifest=None)


def _add_rows(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--packing",
        type=int,
        metavar="LENGTH",
        help="plan rows of so many tokens, as Packing(LENGTH) does, so that no job on this machine has to; with "
        "--explain BATCH, in rows: what must be local, and how unequal the ranks of a step are",
    )
    parser.add_argument(
        "--measure",
        type=count_of,
        metavar="WHAT",
        help="count the tokens of each sample, once, and write the numbers to --cost FILE.npy, as measure_lengths "
        "does: the name of a field, whose length counts, or module:function, which gets a sample as the format makes "
        "it. If the file is there, only chunks that it does not have are read",
    )
    parser.add_argument(
        "--cost",
        type=_file_or_number,
        metavar="FILE",
        help="with --packing, the tokens of each sample, from --measure; or a number: about so many "
        "bytes a token, as Packing(lengths=Estimate(...)) plans them",
    )


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Builds the manifest, copies it, and describes the dataset."""
    _check_measure(arguments)
    if arguments.urls[0].endswith(".toml"):
        raise ConfigError(
            "files of mixes are not read any more: in Python, MixedDataset({...}).explain(batch_size) says the same "
            "(docs/mixing.md)",
            field="urls",
        )
    with _open_manifest(arguments, terminal) as (manifest, fallback_dir):
        where = arguments.out or str(manifest.path)
        if arguments.out:
            _export(manifest, fallback_dir, absolute(arguments.out), arguments.storage_options)
        if arguments.beside:
            where = _manifest_url_beside(manifest, arguments.urls)
            _export(manifest, fallback_dir, where, arguments.storage_options)
        largest_bytes = int(manifest.chunk_local_bytes.max(initial=0))
        terminal.line(
            f"{counted(manifest.samples, 'samples')} in {counted(manifest.objects, 'objects')}, "
            f"{format_bytes(manifest.total_bytes)}, "
            f"{counted(manifest.chunks, 'chunks')} of up to {format_bytes(largest_bytes)}"
        )
        terminal.line(f"format {manifest.format}, digest {manifest.digest}")
        terminal.line(f"manifest: {where}")
        if manifest.classes:
            shown = ", ".join(manifest.classes[:_CLASSES_SHOWN])
            more = " ..." if len(manifest.classes) > _CLASSES_SHOWN else ""
            terminal.line(
                f"{len(manifest.classes):,} {'class' if len(manifest.classes) == 1 else 'classes'}: {shown}{more}"
            )
        if arguments.measure is not None:
            _measure(manifest, arguments, terminal)
        # Rows say themselves what --explain says of samples.
        asked = [describe for option, describe in _DESCRIPTIONS.items() if getattr(arguments, option) is not None]
        if asked:
            terminal.line()
            terminal.line(asked[0](manifest, arguments))
    return Exit.DONE


def _file_or_number(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def _check_measure(arguments: argparse.Namespace) -> None:
    """Checks before a long index what is counted after it."""
    cost = arguments.cost
    if arguments.measure is None:
        return
    if not isinstance(cost, str) or not cost.endswith(".npy"):
        raise ConfigError("--measure needs --cost FILE.npy, where the numbers are written", field="cost")
    if Path(cost).exists() and not Path(f"{cost}.chunks.npy").exists():
        raise ConfigError(f"--cost {cost} is there and was not written by --measure: name another file", field="cost")


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of names as width,lang")
    return names


@contextmanager
def _open_manifest(arguments: argparse.Namespace, terminal: Terminal) -> Iterator[tuple[Manifest, Path]]:
    """Yields the manifest, built by the engine of this machine or in tasks, and the other folder of its columns."""
    if arguments.on is None:
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
    with tempfile.TemporaryDirectory(prefix="streamer-index-") as folder:
        with terminal.progress("indexing", "bytes") as bar:
            manifest = _build_in_tasks(arguments, Path(folder), bar, notes)
        for note in notes:
            terminal.note(note)
        yield manifest, Path(folder)


def _add_columns(manifest: Manifest, client: EngineClient, request: GetManifest, names: Sequence[str]) -> None:
    """Reads columns; the keys are sorted, too, so that one is found at once."""
    from contextlib import closing

    from streamer.batches.scan import KEY
    from streamer.client.engine_client import EngineClient
    from streamer.loader.members.columns import SampleColumns
    from streamer.loader.members.connections import EngineConnections
    from streamer.loader.members.keys import KeyReader, keep_keys

    with closing(EngineConnections(lambda: EngineClient(client.settings))) as connections:
        SampleColumns(manifest, None, client.fallback_dir, connections=connections, request=request).read(names)
        if KEY in names:
            # The column has it: nothing is read again.
            keep_keys(KeyReader(manifest, connections, KEY, fallback_dir=client.fallback_dir))


def _build_in_tasks(arguments: argparse.Namespace, folder: Path, bar: ProgressLine, notes: list[str]) -> Manifest:
    """Builds the manifest without an engine and a cache."""
    import asyncio
    import json

    from streamer.executors.runner import runner
    from streamer.indexing.build import BuildOptions
    from streamer.indexing.source import DatasetSource, manifest_of_source

    if arguments.columns:
        names = ",".join(arguments.columns)
        raise ConfigError(
            "--columns are read by the engine of this machine, and with --on there is none: index with --on and "
            f"--beside, then `streamer index {arguments.urls[0]} --columns {names} --beside` adds them",
            field="columns",
        )
    if not arguments.out and not arguments.beside:
        raise ConfigError("--on needs --out or --beside: there is no engine that keeps the manifest", field="on")
    source = DatasetSource(
        urls=tuple(map(absolute, arguments.urls)),
        format=arguments.format,
        format_options=json.loads(arguments.format_options),
        extensions=tuple(arguments.extensions) if arguments.extensions else None,
        earlier=absolute(arguments.out) if arguments.out else None,
        options=arguments.storage_options,
    )
    options = BuildOptions(
        chunk_bytes=arguments.chunk_bytes or "auto",
        in_key_order=arguments.no_shuffle,
        on_damage=notes.append if arguments.index_errors == "skip" else None,
        on_progress=lambda step: bar.update(step.bytes_done, step.total_bytes, f"{counted(step.samples, 'samples')}"),
    )
    with runner(arguments.on) as running:
        return asyncio.run(manifest_of_source(source, folder, running, options, on_note=notes.append))


def _explain_order(manifest: Manifest, arguments: argparse.Namespace) -> str:
    """Describes the order of the samples."""
    from streamer.order.quality import explain
    from streamer.order.spec import OrderSpec

    batch = arguments.explain
    _check_batch(batch, arguments.nodes)
    spec = OrderSpec.auto(manifest.digest, manifest.chunk_samples, batch_size=batch, seed=arguments.seed)
    total_bytes = int(manifest.chunk_local_bytes.sum())
    return explain(spec, manifest.chunk_samples, batch, total_bytes=total_bytes, nodes=arguments.nodes)


def _plan_rows(manifest: Manifest, arguments: argparse.Namespace) -> str:
    """Plans rows, and describes them."""
    from streamer.batches.rows.explain import explain_rows
    from streamer.batches.rows.options import Estimate, Packing
    from streamer.batches.samples.opened import OpenedDataset

    data = OpenedDataset(manifest, None)
    cost = arguments.cost
    cost = Estimate(cost) if isinstance(cost, float) else cost
    rows = data.plan_rows(Packing(arguments.packing, lengths=cost), manifest.path.parent, shuffle=True)
    if arguments.explain is None:
        return rows.describe()
    _check_batch(arguments.explain, arguments.nodes)
    return explain_rows(rows, data.stored_bytes, arguments.explain, arguments.seed)


# The description of a dataset is that of the first option that was given.
_DESCRIPTIONS = {"packing": _plan_rows, "explain": _explain_order}


def _measure(manifest: Manifest, arguments: argparse.Namespace, terminal: Terminal) -> None:
    """Counts the tokens of all samples."""
    from contextlib import closing

    import numpy as np

    from streamer.base.cgroup import usable_cores
    from streamer.cli.dataset import dataset_of
    from streamer.loader.measure import measure_lengths

    # The manifest of this process is not kept with --on: it is found beside the data, or at --out.
    place = str(manifest.path) if arguments.on is None else arguments.out
    known = arguments.cost if Path(arguments.cost).exists() else None
    if known is not None:
        terminal.note(f"{known} is there: only new chunks are read; delete it to count all, as with another function")
    with closing(dataset_of(arguments, place)) as dataset, terminal.progress("counting", "samples") as bar:
        costs = measure_lengths(
            dataset,
            arguments.measure,
            path=arguments.cost,
            num_workers=0 if arguments.on else min(usable_cores(), manifest.samples // _FOR_A_WORKER),
            resume_from=known,
            executor=arguments.on,
            on_progress=bar.update,
        )
    read = costs[costs >= 0]
    terminal.line(
        f"tokens: {int(read.sum(dtype=np.int64)):,} of {counted(len(costs), 'samples')}, median "
        f"{int(np.median(read)) if len(read) else 0:,}, most {int(read.max(initial=0)):,}: {arguments.cost}"
    )


def _check_batch(batch: int, nodes: int) -> None:
    if batch < 1 or nodes < 1 or batch % nodes:
        raise ConfigError(f"--explain {batch}: must be at least 1, and a multiple of --nodes {nodes}", field="explain")


def _manifest_url_beside(manifest: Manifest, urls: Sequence[str]) -> str:
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
    """Copies columns and manifest, its root last: a reader that finds it finds all of them."""
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
