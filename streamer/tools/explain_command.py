"""Implements `streamer explain`, which says how well a dataset is shuffled or packed. `cli/main.py` runs it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from streamer.cli.exit_codes import Exit
from streamer.cli.options import add_cache_dir, add_dataset, count, count_parts, number, seed
from streamer.cli.terminal import Terminal
from streamer.errors import ConfigError

if TYPE_CHECKING:
    from streamer.manifest.table import Manifest

HELP = "say how well a dataset is shuffled, or packed into rows"

DESCRIPTION = """\
Computes, before a job runs, how well its batches are shuffled, how much of the data is open at a time, and what several
nodes fetch twice. With --packing it plans rows of documents, and says how full they are and how unequal the ranks of a
step. Only the manifest is read.
"""

EXAMPLES = """\
examples:
  streamer explain s3://bucket/train/ --global-batch-size 4096 --nodes 4
  # rows for Packing(8192): how full, how local, how level
  streamer explain s3://bucket/tokens/ --packing 8192
  # with the numbers of `streamer measure`, or about 4.2 bytes a token
  streamer explain s3://bucket/texts/ --packing 8192 --lengths lengths.npy
  streamer explain s3://bucket/texts/ --packing 8192 --lengths 4.2
"""

NOTES = """\
A dataset without a manifest is indexed first, as by `streamer index`. The plan of the rows is kept in the cache folder:
no job on this machine has to make it again. What a job fetches and waits for is computed by `streamer plan`, and what a
mix gives by MixedDataset({...}).explain(batch_size) in Python.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    add_dataset(parser)
    job = parser.add_argument_group("job")
    job.add_argument(
        "--global-batch-size",
        type=count,
        default=256,
        metavar="N",
        help="samples of a batch over all ranks, or rows with --packing (default: 256)",
    )
    job.add_argument("--nodes", type=count_parts, default=1, metavar="N", help="machines of the job (default: 1)")
    job.add_argument("--seed", type=seed, default=17, metavar="N", help="seed of the order (default: 17)")
    job.add_argument("--packing", type=count, metavar="TOKENS", help="plan rows of this length, as Packing(TOKENS)")
    job.add_argument(
        "--lengths",
        type=_file_or_number,
        metavar="FILE",
        help="tokens of each sample, by `streamer measure`; or a number, the bytes of a token on average, as "
        "Packing(lengths=Estimate(...)) plans with (default: what the format knows)",
    )
    add_cache_dir(parser.add_argument_group("machine"))


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Describes the order of the samples, or with --packing the rows.

    Raises:
        ConfigError: an option is invalid.
        StreamerError: the dataset cannot be indexed, or its rows cannot be planned.
    """
    from streamer.cli.dataset import client_settings, describe_dataset, open_manifest
    from streamer.client.engine_client import EngineClient

    if arguments.global_batch_size % arguments.nodes:
        raise ConfigError(
            f"--global-batch-size {arguments.global_batch_size}: must be a multiple of --nodes {arguments.nodes}",
            field="global_batch_size",
        )
    if arguments.lengths is not None and not arguments.packing:
        raise ConfigError("--lengths are those of rows: give --packing, too", field="lengths")
    with EngineClient(client_settings(arguments)) as client:
        manifest = open_manifest(client, arguments, terminal)
    describe_dataset(manifest, terminal)
    terminal.line()
    describe = _describe_rows if arguments.packing else _describe_order
    terminal.line(describe(manifest, arguments))
    return Exit.DONE


def _file_or_number(text: str) -> str | float:
    try:
        float(text)
    except ValueError:
        return text
    return number(text)


def _describe_order(manifest: Manifest, arguments: argparse.Namespace) -> str:
    """Returns a description of the order that a job with these options has."""
    from streamer.order.quality import explain
    from streamer.order.spec import OrderSpec

    batch = arguments.global_batch_size
    spec = OrderSpec.auto(manifest.digest, manifest.chunk_samples, batch_size=batch, seed=arguments.seed)
    total_bytes = int(manifest.chunk_local_bytes.sum())
    return explain(spec, manifest.chunk_samples, batch, total_bytes=total_bytes, nodes=arguments.nodes)


def _describe_rows(manifest: Manifest, arguments: argparse.Namespace) -> str:
    """Returns a description of the rows; plans them, and keeps the plan in the cache folder for jobs."""
    from streamer.batches.rows.explain import explain_rows
    from streamer.batches.rows.options import Estimate, Packing
    from streamer.batches.samples.opened import OpenedDataset

    data = OpenedDataset(manifest, None)
    lengths = Estimate(arguments.lengths) if isinstance(arguments.lengths, float) else arguments.lengths
    rows = data.plan_rows(Packing(arguments.packing, lengths=lengths), manifest.path.parent, shuffle=True)
    return explain_rows(rows, data.stored_bytes, arguments.global_batch_size, arguments.seed)
