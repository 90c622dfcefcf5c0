"""Implements `streamer warm`, which fills a cache before the first job (`warming.py`). `main.py` runs it."""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from streamer.cli.exit_codes import Exit
from streamer.cli.options import add_cache_dir, add_dataset, rate, size_or_auto
from streamer.cli.terminal import Terminal
from streamer.config import format_bytes

if TYPE_CHECKING:
    from streamer.cli.warming import Warmed, WarmPlan

HELP = "fill the cache before the first job comes"

DESCRIPTION = """\
Makes as much of a dataset local as the cache keeps: the very chunks that training would keep, so that no epoch
exchanges them afterwards.
"""

EXAMPLES = """\
examples:
  streamer warm s3://bucket/train/ --cache-bytes 200GB
  # leave the link to others
  streamer warm s3://bucket/train/ --rate-limit 200MB/s
  # a layer for many machines: layers = ["/mnt/image"] in the service's [cache]
  streamer warm s3://bucket/train/ --export /mnt/image
  # the cache of a service
  STREAMER_ENGINE=unix:/run/engine.sock streamer warm s3://bucket/train/
"""

NOTES = """\
What is there already is not fetched again, and an interrupted run goes on where it was. With --export all chunks are
also copied to a folder, whatever the size of the cache: a read-only layer, for example a disk image that is attached to
many machines.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    add_dataset(parser)
    warming = parser.add_argument_group("warming")
    warming.add_argument(
        "--rate-limit", type=rate, default=0, metavar="RATE", help="limit of what the store sends (default: none)"
    )
    warming.add_argument("--export", type=Path, metavar="DIR", help="also copy every chunk there")
    machine = parser.add_argument_group("machine")
    machine.add_argument(
        "--cache-bytes", type=size_or_auto, metavar="SIZE", help="limit of the cache, of an engine that this starts"
    )
    add_cache_dir(machine)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Warms the cache, and shows what is local now.

    Raises:
        CacheError: the cache cannot be used, or a chunk cannot be copied to --export.
        StreamerError: the dataset cannot be indexed or read.
        OSError: the chunks of the cache folder cannot be listed.
    """
    from streamer.cli.dataset import client_settings, open_manifest
    from streamer.cli.warming import Pace, Warming
    from streamer.client.engine_client import EngineClient

    target = None if arguments.export is None else Path(os.path.abspath(arguments.export))
    settings = replace(client_settings(arguments), cache_bytes=arguments.cache_bytes)
    with EngineClient(settings) as client:
        manifest = open_manifest(client, arguments, terminal)
        started = time.monotonic()
        with terminal.progress("warming", "bytes") as bar:
            warming = Warming(client, manifest, Pace(arguments.rate_limit), target)
            chosen, warmed = warming.run(lambda done, total: bar.update(done, total))
        seconds = time.monotonic() - started
    for line in summary(chosen, warmed, seconds):
        terminal.line(line)
    if target is not None:
        terminal.line(f"{target}: {warmed.chunks:,} chunks, {format_bytes(warmed.total_bytes)}")
    return Exit.DONE


def summary(chosen: WarmPlan, warmed: Warmed, seconds: float) -> list[str]:
    """Returns lines about the chunks that are local now, and about those that do not fit.

    Args:
        chosen: the plan of the warming.
        warmed: its result.
        seconds: how long it took.
    """
    total = chosen.present_chunks + warmed.chunks + chosen.missing_chunks
    missing = total - warmed.local_chunks
    rate = f", {format_bytes(warmed.fetched_bytes / seconds)}/s" if warmed.fetched_bytes else ""
    lines = [
        f"{warmed.local_chunks:,} of {total:,} chunks are local; {format_bytes(warmed.fetched_bytes)} fetched{rate}"
    ]
    if missing and not chosen.missing_chunks:
        lines.append(f"{missing:,} chunks have left the cache after their export; a larger --cache-bytes keeps more")
    elif missing:
        lines.append(
            f"{missing:,} chunks have no room: {warmed.local_chunks / total:.0%} of every epoch will be hits; "
            "a larger --cache-bytes takes more"
        )
    return lines
