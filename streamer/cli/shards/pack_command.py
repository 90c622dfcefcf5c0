"""Implements `streamer pack`, which writes a dataset as shards of another format. `cli/main.py` runs it."""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from streamer.base.extras import require_extra
from streamer.base.user_urls import absolute
from streamer.cli.exit_codes import Exit
from streamer.cli.options import (
    add_executor,
    add_format,
    add_join,
    add_manifest,
    add_storage_options,
    count,
    parse_url_or_options,
    positive_size,
    seed,
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

HELP = "write a dataset as WebDataset tars, Parquet or tokens"

DESCRIPTION = """\
Reads a dataset of any format, and writes it as shards of about the same size, with their manifest beside them, which
training opens without reading a shard: uncompressed WebDataset tars, which every tool reads, Parquet, or the .bin and
.idx of Megatron. An interrupted pack goes on when the same command is run again, and ends with the same bytes.
"""

EXAMPLES = """\
examples:
  # how many shards it would write, then the pack, then a check
  streamer pack ./images/ --out s3://bucket/train/ --dry-run
  streamer pack ./images/ --out s3://bucket/train/
  streamer verify s3://bucket/train/
  # two fields of each sample, shuffled
  streamer pack s3://bucket/tars/ --out ./new/ --order shuffle --fields jpg,cls
  streamer pack s3://bucket/tars/ --out ./table/ --output-format parquet
  streamer pack s3://bucket/parquet/ --out ./tokens/ --output-format tokens \\
    --fields input_ids --vocab-size 50257
  # labels from a file, fields from another dataset
  streamer pack ./train2017/ --out ./train/ --annotations ./train2017.json
  streamer pack ./tars/ --out ./joined/ --join s3://bucket/latents/:__key__
"""

NOTES = """\
Raw files are packed in an order that mixes their classes, and names of class folders become numbers in `cls`. The
columns of Parquet follow from the first 64 samples. Tokens are a field that is a list of integers; --fields names it
where there are several.

Each shard is uploaded as a whole and then noted. Each process writes one shard at a time to the folder for temporary
files (TMPDIR), which needs room for as many. With --join, the other datasets are read through the engine and the cache
of the machine of each process (docs/joins.md).

To change samples on the way, or to pack what a program makes: streamer.pack(...) in Python (docs/pack.md).
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    source = parser.add_argument_group("dataset")
    source.add_argument("urls", nargs="+", metavar="SRC", help="a prefix or folder, an object, or a pattern")
    add_manifest(source)
    add_format(source)
    add_storage_options(source)
    source.add_argument(
        "--annotations",
        type=parse_url_or_options,
        metavar="URL",
        help="a file with labels, boxes or texts, joined by key; or JSON with url, key, fields, missing, sample_field",
    )
    add_join(source)
    shards = parser.add_argument_group("shards")
    shards.add_argument("--out", required=True, metavar="DST", help="an empty url or folder, where the shards go")
    shards.add_argument(
        "--output-format",
        choices=("webdataset", "parquet", "tokens"),
        default="webdataset",
        help="what the shards are (default: webdataset); Parquet for samples of a few KB, of which a tar is 1.5 times "
        "as large; tokens for .bin and .idx",
    )
    shards.add_argument(
        "--shard-bytes",
        type=positive_size,
        default="1GB",
        metavar="SIZE",
        help="about how large a shard is (default: 1GB)",
    )
    shards.add_argument(
        "--order",
        choices=("manifest", "name", "shuffle"),
        default="manifest",
        help="of the samples: as the manifest has them (raw files: mixed by the hash of their names), by name (raw "
        "files), or shuffled (tars: whole chunks, mixed within 128 MiB) (default: manifest)",
    )
    shards.add_argument("--seed", type=seed, default=0, metavar="N", help="seed of the order (default: 0)")
    shards.add_argument(
        "--fields",
        type=_fields,
        metavar="A,B=C",
        help="fields to write, e.g. jpg,cls; with other names: image=jpg,label=cls (default: all)",
    )
    shards.add_argument(
        "--vocab-size",
        type=count,
        metavar="N",
        help="number of different tokens: below 65,500 a token takes 2 bytes, else 4 (default: 4, or 2 where the "
        "samples have arrays of such)",
    )
    shards.add_argument(
        "--prefix", default="shard-", metavar="TEXT", help="how names of shards begin (default: shard-)"
    )
    shards.add_argument("--dry-run", action="store_true", help="say what would be written, and write nothing")
    shards.add_argument(
        "--out-storage-options", type=storage_options, metavar="JSON", help="for DST, where they are not those of SRC"
    )
    add_executor(parser.add_argument_group("machine"))


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Packs, or with --dry-run shows what would be written.

    Raises:
        ConfigError: an option is invalid.
        PackError: a sample or a shard cannot be written.
        StreamerError: the source cannot be indexed or read.
    """
    from streamer.executors.runner import runner
    from streamer.shards.prepared import run as pack
    from streamer.shards.progress import Callbacks

    with ExitStack() as held:
        running = held.enter_context(runner(arguments.executor))
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
    """Indexes the source in tasks, into a folder that `held` removes at its end, and plans the pack."""
    from streamer.base.temporary import open_temporary_folder
    from streamer.shards.prepared import prepare
    from streamer.shards.progress import Callbacks

    folder = held.enter_context(open_temporary_folder("pack"))
    with terminal.progress("indexing", "bytes") as bar:
        callbacks = Callbacks(on_note=terminal.note, on_index=lambda step: _show_index(step, bar))
        return prepare(_source(arguments), _pack_options(arguments), folder, running, callbacks)


def _prepare_join(arguments: argparse.Namespace, running: Runner, terminal: Terminal, held: ExitStack) -> Prepared:
    """Opens the dataset with its joins until `held` ends, says what the joins cost, and plans the pack."""
    from streamer.shards.prepared import prepare_scan

    scan = held.enter_context(closing(_open_dataset(arguments)._scan()))
    for line in scan.describe_costs():
        terminal.line(line)
    return prepare_scan(scan, _pack_options(arguments), running)


def _open_dataset(arguments: argparse.Namespace) -> StreamingDataset:
    """Returns the dataset joined to those of all --join options.

    Raises:
        ConfigError: an option is invalid, or torch is not installed.
    """
    from streamer.cli.dataset import JoinOptions, choose_format
    from streamer.formats.folder import Folder

    with require_extra("--join", field="join"):
        from streamer.loader.dataset import StreamingDataset

    extensions = arguments.extensions
    joined = StreamingDataset(
        arguments.urls,
        format=Folder(extensions) if extensions else choose_format(arguments.format, arguments.format_options),
        manifest=arguments.manifest,
        storage_options=arguments.storage_options,
        annotations=arguments.annotations,
    )
    for given in arguments.join:
        join = JoinOptions.parse(given)
        joined = join.join(joined, arguments.storage_options, {"manifest": join.manifest})
    return joined


def _source(arguments: argparse.Namespace) -> DatasetSource:
    from streamer.indexing.source import DatasetSource

    return DatasetSource(
        urls=tuple(map(absolute, arguments.urls)),
        format=arguments.format,
        format_options=arguments.format_options,
        extensions=tuple(arguments.extensions) if arguments.extensions else None,
        manifest=absolute(arguments.manifest) if arguments.manifest else None,
        options=arguments.storage_options,
    )


def _pack_options(arguments: argparse.Namespace) -> PackOptions:
    from streamer.annotations.options import Annotations
    from streamer.shards.destination import folder_url
    from streamer.shards.prepared import PackOptions

    out_options = arguments.out_storage_options
    return PackOptions(
        url=folder_url(arguments.out),
        prefix=arguments.prefix,
        shard_bytes=arguments.shard_bytes,
        order=arguments.order,
        seed=arguments.seed,
        fields=arguments.fields,
        transform=None,
        options=arguments.storage_options if out_options is None else out_options,
        output=arguments.output_format,
        vocab_size=arguments.vocab_size,
        annotations=Annotations.parse(arguments.annotations),
    )


def _fields(text: str) -> dict[str, str]:
    """Parses the value of --fields, such as jpg,label=cls, into the names in the source and those in the shards."""
    pairs = [part.strip().partition("=") for part in text.split(",")]
    found = {old.strip(): (new or old).strip() for old, _, new in pairs}
    if not all(found) or not all(found.values()) or len(set(found.values())) < len(pairs):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list such as jpg,cls or image=jpg,label=cls, each name once"
        )
    return found


class _Pace:
    """Shows the progress of a pack, with a rate and a remaining time that follow from what this run has written."""

    def __init__(self, bar: ProgressLine) -> None:
        self._bar = bar
        self._started = time.monotonic()

    def show(self, step: PackProgress) -> None:
        """Shows one step of the pack."""
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
    """Shows what a pack would write, and from which dataset."""
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
