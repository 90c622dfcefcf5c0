"""`streamer pack`."""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

from streamer.cli.exit_codes import Exit
from streamer.cli.options import (
    add_format,
    add_on,
    add_storage_options,
    mapping,
    parse_url_or_options,
    size,
    storage_options,
)
from streamer.cli.terminal import ProgressLine, Terminal
from streamer.config import counted, format_bytes

if TYPE_CHECKING:
    from streamer.executors.runner import Runner
    from streamer.indexing.source import DatasetSource
    from streamer.loader.dataset import StreamingDataset
    from streamer.manifest.protocols import BuildProgress
    from streamer.shards.prepared import PackOptions, Prepared
    from streamer.shards.progress import PackProgress
    from streamer.shards.settle import PackResult

HELP = "write a dataset as WebDataset tars, Parquet or tokens, with their manifest beside them"

DESCRIPTION = """\
Reads a dataset in any format that is read, and writes it as uncompressed WebDataset tars of about the same size, which
every tool reads; beside them, in .streamer/, the manifest that training opens without reading a tar. Raw
files are packed in an order that mixes their classes. Names of class folders become numbers in `cls`. With --format
parquet it writes Parquet, whose columns follow from the first 64 samples; with --format tokens the .bin and .idx of
Megatron, of the field that is a list of integers (--fields names it where there are several).

Each shard is uploaded as a whole and then noted; a pack that was interrupted goes on when the same command is run
again, and ends with the same bytes. Each process writes one shard at a time to the folder for temporary files
(TMPDIR), so that folder needs a shard's size for each process.

With --join, samples get the fields of other datasets, by key (docs/joins.md). They are read through the engine and the
cache of the machine of each process.

To change samples on the way, or to pack what a program makes: streamer.pack(...) in Python (docs/pack.md).
"""

EXAMPLES = """\
examples:
  streamer pack ./images/ --out s3://bucket/train/
  streamer pack s3://bucket/raw/ --out s3://bucket/train/ --shard-size 512MB --prefix train- --on processes:16
  streamer pack s3://bucket/tars/ --out ./shuffled/ --order shuffle --seed 17 --fields jpg,cls
  streamer pack s3://bucket/tars/ --out s3://bucket/table/ --format parquet
  streamer pack s3://bucket/parquet/ --out s3://bucket/tokens/ --format tokens --fields input_ids --vocabulary 50257
  streamer pack s3://bucket/train2017/ --out s3://bucket/train/ --annotations s3://bucket/instances_train2017.json
  streamer pack s3://bucket/tars/ --out s3://bucket/joined/ --join '{"url": "s3://bucket/latents/", "on": "__key__"}'
  streamer pack s3://bucket/raw/ --out s3://bucket/train/ --dry-run       how many shards, and how large
  streamer verify s3://bucket/train/                                      whether they are still what was written
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("urls", nargs="+", metavar="SRC", help="a prefix, an object, or a pattern")
    parser.add_argument("--out", required=True, metavar="DST", help="url or folder of the shards; empty before")
    parser.add_argument(
        "--format",
        choices=("tar", "parquet", "tokens"),
        default="tar",
        help="of the shards; parquet: for samples of a few KB, of which a tar is 1.5 times as large; tokens: .bin and "
        ".idx (default: tar)",
    )
    parser.add_argument(
        "--vocabulary",
        type=int,
        metavar="N",
        help="with tokens: how many there are; below 65,500 they take 2 bytes, else 4 (default: 4, or 2 where the "
        "samples have arrays of such)",
    )
    add_format(parser, "--source-format")
    parser.add_argument(
        "--manifest", metavar="URL", help="of SRC, by `streamer index --out`; without it SRC is indexed"
    )
    parser.add_argument(
        "--shard-size", type=size, default="1GB", metavar="SIZE", help="of a shard, about (default: 1GB)"
    )
    parser.add_argument(
        "--order",
        choices=("manifest", "name", "shuffle"),
        default="manifest",
        help="of the samples: as the manifest has them (raw files: mixed by the hash of their names), by name (raw "
        "files), or shuffled (tars: whole chunks, mixed within 128 MiB) (default: manifest)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the shuffle (default: 0)")
    parser.add_argument(
        "--fields",
        type=_fields,
        metavar="A,B=C",
        help="to write, e.g. jpg,cls; with other names: image=jpg,label=cls (default: all)",
    )
    parser.add_argument(
        "--annotations",
        type=parse_url_or_options,
        metavar="URL",
        help="a file with labels, boxes or texts, joined by key; or JSON with url, key, fields, missing, sample_field",
    )
    parser.add_argument(
        "--join",
        type=mapping,
        action="append",
        default=[],
        metavar="JSON",
        help="a dataset whose fields samples get: url, on, and columns, missing, validate as StreamingDataset.join has "
        "them; format, format_options, manifest, storage_options of its own. Can be repeated",
    )
    parser.add_argument("--prefix", default="shard-", metavar="TEXT", help="of the shards' names (default: shard-)")
    add_on(parser)
    parser.add_argument("--dry-run", action="store_true", help="say what would be written, and write nothing")
    add_storage_options(parser)
    parser.add_argument(
        "--out-storage-options", type=storage_options, metavar="JSON", help="for DST, where they are not those of SRC"
    )


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Packs, or shows what would be packed."""
    from streamer.executors.runner import runner
    from streamer.shards.prepared import run as pack
    from streamer.shards.progress import Callbacks

    with ExitStack() as held:
        running = held.enter_context(runner(arguments.on))
        prepared = (
            _prepare_join(arguments, running, terminal, held)
            if arguments.join
            else _prepare(arguments, running, terminal, held)
        )
        if arguments.dry_run:
            _plan(prepared, terminal)
            return Exit.DONE
        with terminal.progress("packing", "bytes") as bar:
            pace = _Pace(bar)
            packed = pack(prepared, running, Callbacks(on_progress=pace.show))
    _summary(packed, terminal)
    return Exit.DONE


def _prepare(arguments: argparse.Namespace, running: Runner, terminal: Terminal, held: ExitStack) -> Prepared:
    """Indexes the source, and plans its pack."""
    from streamer.shards.prepared import prepare
    from streamer.shards.progress import Callbacks

    folder = held.enter_context(tempfile.TemporaryDirectory(prefix="streamer-pack-"))
    with terminal.progress("indexing", "bytes") as bar:
        callbacks = Callbacks(on_note=terminal.note, on_index=lambda step: _show_index(step, bar))
        return prepare(_source(arguments), _pack_options(arguments), Path(folder), running, callbacks)


def _prepare_join(arguments: argparse.Namespace, running: Runner, terminal: Terminal, held: ExitStack) -> Prepared:
    """Opens the joined dataset, says what the joins cost, and plans its pack."""
    from streamer.shards.prepared import prepare_scan

    scan = held.enter_context(closing(_open_dataset(arguments)._scan()))
    for line in scan.describe_costs():
        terminal.line(line)
    return prepare_scan(scan, _pack_options(arguments), running)


def _open_dataset(arguments: argparse.Namespace) -> StreamingDataset:
    """Opens the dataset with the fields of all right sides.

    Raises:
        ConfigError: an option is invalid.
    """
    import json

    from streamer.cli.dataset import JoinOptions, choose_format
    from streamer.formats.folder import Folder
    from streamer.loader.dataset import StreamingDataset

    extensions = arguments.extensions
    format_options = json.loads(arguments.format_options)
    joined = StreamingDataset(
        arguments.urls,
        format=Folder(extensions) if extensions else choose_format(arguments.source_format, format_options),
        manifest=arguments.manifest,
        storage_options=arguments.storage_options,
        annotations=arguments.annotations,
    )
    for given in arguments.join:
        join = JoinOptions.parse(given)
        joined = join.join(joined, arguments.storage_options, {"manifest": join.manifest})
    return joined


def _source(arguments: argparse.Namespace) -> DatasetSource:
    import json

    from streamer.base.paths import absolute
    from streamer.indexing.source import DatasetSource

    return DatasetSource(
        urls=tuple(map(absolute, arguments.urls)),
        format=arguments.source_format,
        format_options=json.loads(arguments.format_options),
        extensions=tuple(arguments.extensions) if arguments.extensions else None,
        manifest=absolute(arguments.manifest) if arguments.manifest else None,
        options=arguments.storage_options,
    )


def _pack_options(arguments: argparse.Namespace) -> PackOptions:
    from streamer.annotations.options import Annotations
    from streamer.shards.destination import folder_url
    from streamer.shards.outputs.registry import replace_output
    from streamer.shards.prepared import PackOptions

    out_options = arguments.out_storage_options
    return PackOptions(
        url=folder_url(arguments.out),
        prefix=arguments.prefix,
        shard_bytes=arguments.shard_size,
        order=arguments.order,
        seed=arguments.seed,
        fields=arguments.fields,
        transform=None,
        options=arguments.storage_options if out_options is None else out_options,
        output=replace_output(arguments.format),
        vocab_size=arguments.vocabulary,
        annotations=Annotations.parse(arguments.annotations),
    )


def _fields(text: str) -> dict[str, str]:
    """Parses jpg,label=cls: the names in the source, and those in the shards."""
    pairs = [part.strip().partition("=") for part in text.split(",")]
    found = {old.strip(): (new or old).strip() for old, _, new in pairs}
    if not all(found) or not all(found.values()) or len(set(found.values())) < len(pairs):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list such as jpg,cls or image=jpg,label=cls, each name once"
        )
    return found


class _Pace:
    """Shows the progress, the rate and the remaining time of a pack."""

    def __init__(self, bar: ProgressLine) -> None:
        self._bar = bar
        self._started = time.monotonic()

    def show(self, step: PackProgress) -> None:
        text = f"{step.shards_done:,} of {counted(step.shards or 0, 'shards')}, {counted(step.samples_done, 'samples')}"
        seconds = time.monotonic() - self._started
        done = step.bytes_done - step.earlier_bytes
        if done and seconds:
            text += f", {format_bytes(done / seconds)}/s"
            left = (step.bytes or step.bytes_done) - step.bytes_done
            text += f", {_duration(left * seconds / done)} left" if left else ""
        self._bar.update(step.bytes_done, step.bytes, text)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _show_index(step: BuildProgress, bar: ProgressLine) -> None:
    bar.update(step.bytes_done, step.total_bytes, f"{counted(step.samples, 'samples')}")


def _plan(prepared: Prepared, terminal: Terminal) -> None:
    plan = prepared.plan
    manifest = prepared.manifest
    largest = int(plan.shard_bytes.max())
    terminal.line(
        f"would write {counted(plan.shards, 'shards')} of about {format_bytes(largest)} to {prepared.job.url}: "
        f"{counted(manifest.samples, 'samples')}, about {format_bytes(int(plan.shard_bytes.sum()))}"
    )
    terminal.line(f"from {counted(manifest.objects, 'objects')} of format {manifest.format}, digest {manifest.digest}")


def _summary(packed: PackResult, terminal: Terminal) -> None:
    terminal.line(
        f"{counted(packed.samples, 'samples')} in {counted(packed.shards, 'shards')}, {format_bytes(packed.bytes)}: "
        f"{packed.url}"
    )
    terminal.line(f"manifest: {packed.url}.streamer/, digest {packed.digest}")
