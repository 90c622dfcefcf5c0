"""Implements `streamer measure`, which counts the tokens of each sample for sequence packing. `main.py` runs it."""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path

from streamer.base.extras import require_extra
from streamer.cli.exit_codes import Exit
from streamer.cli.options import add_cache_dir, add_dataset, add_executor, parse_function
from streamer.cli.terminal import Terminal
from streamer.config import counted
from streamer.errors import ConfigError

HELP = "count the tokens of each sample, for sequence packing"

DESCRIPTION = """\
Reads all samples once, counts the tokens of each, and writes the numbers to a file for Packing(lengths=FILE), as
measure_lengths does in Python.
"""

EXAMPLES = """\
examples:
  streamer measure s3://bucket/tokenized/ --field input_ids --out lengths.npy
  # job.py: def count(sample): return len(tokenizer(sample["text"]))
  streamer measure s3://bucket/texts/ --function job:count --out lengths.npy
  # then: the rows that these numbers give
  streamer explain s3://bucket/texts/ --packing 8192 --lengths lengths.npy
"""

NOTES = """\
If FILE is there, only samples are read that have come since: it must be of the same field or function. Delete it to
count all of them again. What is interrupted leaves FILE.partial.npy, with which the same command goes on. The dataset
is indexed first if it has no manifest; with an executor on other machines, one beside the data (`streamer index
--beside`) saves each of them from indexing it again.
"""

# Samples for each worker, at least: fewer are counted in less time than a worker takes to start.
_FOR_A_WORKER = 2048


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    add_dataset(parser)
    counting = parser.add_argument_group("count")
    what = counting.add_mutually_exclusive_group(required=True)
    what.add_argument("--field", metavar="NAME", help="the length of this field, for example of a list of tokens")
    what.add_argument(
        "--function",
        type=parse_function,
        metavar="MODULE:NAME",
        help="the number that this function returns for a sample as the format makes it; of a module in this folder, "
        "or of an installed one",
    )
    counting.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the numbers go, .npy: int32")
    machine = parser.add_argument_group("machine")
    add_executor(machine, default=None)
    add_cache_dir(machine)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Counts the tokens, writes the counts to --out, and shows their sum, median and maximum.

    Raises:
        ConfigError: an option is invalid.
        StreamerError: the dataset cannot be indexed or read.
        Exception: the error of --function.
    """
    import numpy as np

    from streamer.base.cgroup import usable_cores
    from streamer.cli.dataset import client_settings, dataset_of, open_manifest
    from streamer.client.engine_client import EngineClient

    with require_extra("counting tokens", field="torch"):
        from streamer.loader.measure import find_partial_file, measure_lengths

    out: Path = arguments.out
    _check_out(out)
    with EngineClient(client_settings(arguments)) as client:
        manifest = open_manifest(client, arguments, terminal)
        # The tasks of an executor may run where this machine's folder is not: they find the manifest themselves.
        place = str(manifest.path) if arguments.executor is None else arguments.manifest
        earlier = [path for path in (out, find_partial_file(out)) if path.exists()]
        for path in earlier:
            terminal.note(
                f"{path} is there: only new chunks are read; delete it to count all, as with another function"
            )
        with closing(dataset_of(arguments, place)) as dataset, terminal.progress("counting", "samples") as bar:
            lengths = measure_lengths(
                dataset,
                arguments.field if arguments.function is None else arguments.function,
                path=out,
                num_workers=0 if arguments.executor else min(usable_cores(), manifest.samples // _FOR_A_WORKER),
                resume_from=out if earlier else None,
                executor=arguments.executor,
                on_progress=bar.update,
            )
    read = lengths[lengths >= 0]
    median = int(np.median(read)) if len(read) else 0
    terminal.line(
        f"tokens: {int(read.sum(dtype=np.int64)):,} of {counted(len(lengths), 'samples')}, median {median:,}, max "
        f"{int(read.max(initial=0)):,}: {out}"
    )
    return Exit.DONE


def _check_out(out: Path) -> None:
    """Checks --out before the dataset is indexed, which may take long.

    Raises:
        ConfigError: the file is no .npy file, or another program has written it.
    """
    if out.suffix != ".npy":
        raise ConfigError(f"--out {out}: the numbers are written to a .npy file", field="out")
    if out.exists() and not out.with_name(f"{out.name}.chunks.npy").exists():
        raise ConfigError(f"--out {out} is there and was not written by `streamer measure`: name another", field="out")
