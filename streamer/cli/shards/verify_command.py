"""Implements `streamer verify`, which compares the shards of a pack with what was written. `cli/main.py` runs it."""

from __future__ import annotations

import argparse
from contextlib import nullcontext

from streamer.cli.exit_codes import Exit
from streamer.cli.options import add_executor, add_storage_options
from streamer.cli.terminal import Terminal
from streamer.config import counted, format_bytes
from streamer.errors import ConfigError

HELP = "compare the shards of a pack with what was written"

DESCRIPTION = """\
Compares the shards that `streamer pack` has written with its receipts and their manifest, and reads one piece of each
shard, or with --every all of them, to compare it with its checksum: a piece is a sample of a tar, a row group of
Parquet, or about a MiB of tokens. The exit code is 1 where a shard differs.
"""

EXAMPLES = """\
examples:
  streamer verify s3://bucket/train/
  streamer verify ./train/ --every
  streamer verify s3://bucket/train/ --every --executor dask:tcp://host:8786
"""

NOTES = """\
The same pack, run again, writes the shards whose size or version differs. A shard that has them but a wrong checksum
is written again once it is deleted.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    dataset = parser.add_argument_group("shards")
    dataset.add_argument("url", metavar="URL", help="where the pack has written them (its --out)")
    dataset.add_argument("--every", action="store_true", help="read all pieces, not one of each shard")
    add_storage_options(dataset)
    add_executor(parser.add_argument_group("machine"))
    # Without a value of its own, an executor that was given without --every is told from the default one.
    parser.set_defaults(executor=None)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Verifies the shards, and shows what was compared.

    Raises:
        ConfigError: an option is invalid.
        ObjectChangedError, IntegrityError: a shard, a sample or the manifest differs.
        ManifestError, StoreError: there is no finished pack at the url, or it cannot be read.
    """
    from streamer.executors.runner import runner
    from streamer.shards.destination import folder_url
    from streamer.shards.settle import wait_for
    from streamer.shards.verify import verify

    url = folder_url(arguments.url)
    if arguments.executor is not None and not arguments.every:
        raise ConfigError(
            "--executor runs the tasks that read all pieces, and without --every this process reads one of each shard: "
            "add --every, or leave --executor out",
            field="executor",
        )
    where = runner(arguments.executor or "processes") if arguments.every else nullcontext()
    with terminal.progress("verifying", "bytes") as bar, where as running:
        found = wait_for(verify(url, arguments.storage_options, runner=running, on_progress=bar.update))
    terminal.line(
        f"{counted(found.shards, 'shards')}, {counted(found.samples, 'samples')}, {format_bytes(found.bytes)}: sizes, "
        f"versions and manifest agree; {counted(found.read_samples, 'samples')} read, their checksums agree"
    )
    terminal.line(f"digest {found.digest}")
    return Exit.DONE
