"""`streamer demo`: says where the demo is."""

from __future__ import annotations

import argparse

from streamer.cli.exit_codes import Exit
from streamer.cli.terminal import Terminal

HELP = "where the demo is: an example in the repository"

DESCRIPTION = """\
The demo trains on a bucket, through the cache, on one machine. It is an example in the repository, not a part of the
installed package: examples/demo in a clone.
"""

EXAMPLES = """\
examples:
  streamer demo            says how to run it, and what to try with the installed package
"""

TEXT = """\
The demo is in the repository, as examples/demo; in a clone:
  make demo                                  trains on a bucket for a minute, in an environment that it makes
  python -m examples.demo                    the same in an environment with pip install ".[demo]"

With the installed package alone, on data of your own (a folder, s3://, gs://, az://, https://):
  streamer doctor URL                        what this machine has and lacks, and whether the data can be read
  streamer index URL --explain               what is there, as which format, and what it costs to index it
  streamer show URL                          some samples of it
  streamer bench URL                         what the link to it gives"""


# Options of earlier releases, in which the command was the demo.
_OLD_OPTIONS = ("images", "epochs", "ranks", "workers", "seed", "layout", "link", "kill-epoch", "out")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of earlier releases, without help: with them, too, the command says where the demo is."""
    for name in _OLD_OPTIONS:
        parser.add_argument(f"--{name}", dest="old_option", help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Says where the demo is; a script that expects a run of the demo gets the exit code of a wrong option."""
    for line in TEXT.splitlines():
        terminal.line(line)
    return Exit.DONE if arguments.old_option is None else Exit.USAGE
