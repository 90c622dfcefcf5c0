"""Runs the command line: parses it, runs the chosen command, and turns errors into one line and an exit code.

`main` is the entry point of the program `streamer` and of `python -m streamer`.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn, Protocol, cast

from streamer.base.logs import configure, level_of
from streamer.cli.exit_codes import Exit, exit_of, explain_codes
from streamer.cli.options import move_logins
from streamer.cli.parser import CommandParser
from streamer.cli.terminal import Terminal
from streamer.config import Environment
from streamer.errors import StreamerError
from streamer.removed import OPTIONS

DESCRIPTION = "Train on data in object storage that is larger than the local disk."

EXAMPLES = """\
begin here:
  streamer demo                        where the demo is, on one machine
  streamer doctor s3://bucket/train/   whether this machine can read the data
  streamer index s3://bucket/train/    what is there, before the first job
  streamer show s3://bucket/train/ --sample 17
  streamer serve --cache-bytes 200GB   the engine as a service, for many jobs
"""

NOTES = """\
`streamer COMMAND --help` has examples, and the unit of each value. In all commands an option means the same.

settings in the environment (docs/configuration.md has all of them):
  STREAMER_CACHE_DIR     the cache folder
  STREAMER_RUNTIME_DIR   sockets and logs of engines
  STREAMER_ENGINE        the engine to use: unix:PATH
  STREAMER_LOG           debug, info or warning
  STREAMER_LOG_FORMAT    text or json
"""

# Explanations of placeholders (metavars) that stand below the options in a command's help.
UNITS = {
    "SIZE": "SIZE is a number of bytes, or has a unit: 200GB (10^9 bytes), 8MiB (2^20).",
    "RATE": "RATE is a size per second: 200MB/s, 1GiB/s.",
    "JSON": "JSON can be in a file: @options.json.",
}


class Command(Protocol):
    """What the module of each command has.

    Attributes:
        HELP: What the command does in a few words, for the list of commands.
        DESCRIPTION: What it does in a sentence or a few, above the options.
        EXAMPLES: Command lines to copy, between the description and the options.
        NOTES: More paragraphs, below the options; may be empty.
    """

    HELP: str
    DESCRIPTION: str
    EXAMPLES: str
    NOTES: str

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Adds the command's options to its parser."""
        ...

    @staticmethod
    def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
        """Runs the command and returns its exit code; a StreamerError that it raises becomes another code."""
        ...


# The module of each command, in the order of the help.
COMMANDS = {
    "demo": "streamer.tools.demo_command",
    "doctor": "streamer.tools.doctor",
    "index": "streamer.cli.index_command",
    "show": "streamer.cli.show_command",
    "explain": "streamer.tools.explain_command",
    "measure": "streamer.cli.measure_command",
    "plan": "streamer.tools.plan_command",
    "bench": "streamer.tools.bench_command",
    "pack": "streamer.cli.shards.pack_command",
    "verify": "streamer.cli.shards.verify_command",
    "serve": "streamer.cli.serve_command",
    "stat": "streamer.cli.stat_command",
    "top": "streamer.cli.top_command",
    "warm": "streamer.cli.warm_command",
    "cache": "streamer.cli.cache_command",
    "audit": "streamer.tools.audit_command",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line.

    Args:
        argv: Words after the program's name. None means those of this process, which then also handles SIGTERM, and
            which ends here if the command has used obstore.

    Returns:
        The exit code, one of `Exit`.

    Raises:
        SystemExit: the words are not a command line, or only ask for help.
        Exception: a defect, or with --debug any error of the command.
    """
    arguments = build_parser().parse_args(argv)
    if argv is None:
        # SIGTERM raises SystemExit, so that a command ends the processes and removes the folders that it has made.
        signal.signal(signal.SIGTERM, lambda number, stack: sys.exit(Exit.TERMINATED))
    code = _run(arguments, Terminal())
    if argv is None and "obstore" in sys.modules:
        _leave(code)
    return code


def build_parser() -> CommandParser:
    """Builds the parser of all commands; the namespace that it returns has the command's `run`."""
    from streamer.version import VERSION

    parser = CommandParser(
        prog="streamer",
        description=f"{DESCRIPTION}\n\n{EXAMPLES}",
        epilog=f"{NOTES}\n{explain_codes()}",
    )
    parser.add_argument("--version", action="version", version=f"streamer {VERSION}")
    parser.add_argument("--debug", action="store_true", help="log everything, and show tracebacks")
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", title="commands", prog=parser.prog
    )
    for name, module in COMMANDS.items():
        command = cast(Command, import_module(module))
        sub = commands.add_parser(
            name,
            help=command.HELP,
            description=f"{command.DESCRIPTION}\n{command.EXAMPLES}",
            removed=OPTIONS.get(name, {}),
        )
        command.add_arguments(sub)
        used = {action.metavar for action in sub._actions}
        units = " ".join(text for metavar, text in UNITS.items() if metavar in used)
        notes = [part.strip("\n") for part in (command.NOTES, units, explain_codes()) if part]
        sub.epilog = "\n\n".join(notes)
        sub.set_defaults(run=command.run)
    return parser


def _leave(code: int) -> NoReturn:
    """Flushes all output, and ends the process without taking down the interpreter.

    A thread of obstore that comes back to Python meanwhile would abort the process: 1 of 25 runs of `streamer index
    --out` ended with SIGABRT after all its work was done (obstore 0.12.1, 2026-11-20).
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Runs the parsed command; shows errors that are not defects in one line, unless --debug asks for tracebacks."""
    try:
        environment = Environment.read()
        level = logging.DEBUG if arguments.debug else level_of(environment.log_level, logging.WARNING)
        configure(level, "%(asctime)s %(name)s %(levelname)s %(message)s", environment)
        move_logins(arguments)
        return int(arguments.run(arguments, terminal))
    except StreamerError as error:
        if arguments.debug:
            raise
        terminal.error(str(error))
        return exit_of(error)
    except KeyboardInterrupt:
        terminal.error("interrupted")
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # The reader of the output is gone (`streamer index ... | head`): the interpreter must not flush it at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FAILED
    except OSError as error:
        # An error with a file name is about a file that the user named. Any other is a defect, and keeps its traceback.
        if arguments.debug or error.filename is None:
            raise
        terminal.error(f"{error.filename}: {error.strerror}")
        return Exit.FAILED
