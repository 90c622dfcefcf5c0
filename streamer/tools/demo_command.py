"""Implements `streamer demo`, which says where the demo is. `cli/main.py` runs it."""

from __future__ import annotations

import argparse

from streamer.cli.exit_codes import Exit
from streamer.cli.terminal import Terminal

HELP = "where the demo is: an example in the repository"

DESCRIPTION = """\
Says how to run the demo, which trains on a bucket, through the cache, on one machine, and what to try with the
installed package alone. The demo is an example in the repository: examples/demo in a clone.
"""

EXAMPLES = """\
examples:
  streamer demo
"""

NOTES = ""

TEXT = """\
The demo is in the repository, as examples/demo; in a clone:
  make demo                     a minute, in an environment that it makes
  python -m examples.demo       the same after pip install ".[demo]"

With the installed package alone, on data of your own (a folder, s3://, gs://,
az://, https://):
  streamer doctor URL           whether this machine can read it
  streamer index URL            what is there, and in which format
  streamer show URL --sample 0  its first sample
  streamer explain URL          how well it is shuffled
  streamer bench URL            what the link to it gives"""


# Options of earlier releases, in which the command ran the demo.
_OLD_OPTIONS = ("images", "epochs", "ranks", "workers", "seed", "layout", "link", "kill-epoch", "out")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of earlier releases without showing them, so that the command takes them and can answer."""
    for name in _OLD_OPTIONS:
        parser.add_argument(f"--{name}", dest="old_option", help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Says where the demo is; returns `USAGE` if an option of earlier releases was given, since no demo has run."""
    for line in TEXT.splitlines():
        terminal.line(line)
    return Exit.DONE if arguments.old_option is None else Exit.USAGE
