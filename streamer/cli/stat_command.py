"""Implements `streamer stat`, which shows the statistics of a running engine once. `main.py` runs it."""

from __future__ import annotations

import argparse
import json

from streamer.cli.connect import add_engine_options, engine_client
from streamer.cli.exit_codes import Exit
from streamer.cli.options import add_json
from streamer.cli.status_view import WORDS, StatusView
from streamer.cli.terminal import Terminal

HELP = "what an engine does, once"

DESCRIPTION = """\
Asks a running engine for its counters and shows them: what comes from the store and from the cache, hits against the
bound that the cache's size sets, how full it is, requests in flight, and for each session how long it stood still.
"""

EXAMPLES = """\
examples:
  streamer stat
  streamer stat --socket /run/streamer/engine.sock
  streamer stat --json | jq .hit_bytes
"""

NOTES = """\
Rates and shares are over the engine's life; `streamer top` shows them live. The names in the JSON are those that
/metrics is made of. What a job will fetch, also of its joins, is what `streamer plan` computes.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    add_engine_options(parser)
    add_json(parser.add_argument_group("output"))


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Asks the engine for its statistics, and shows them as text or JSON.

    Raises:
        EngineUnavailableError, ConfigError, ProtocolVersionError: no engine can be asked; see `connect.engine_client`.
    """
    with engine_client(arguments) as client:
        statistics = client.statistics()
    if arguments.json:
        terminal.line(json.dumps(statistics, sort_keys=True))
    else:
        show(StatusView(statistics), terminal)
    return Exit.DONE


def show(view: StatusView, terminal: Terminal) -> None:
    """Writes the figures of a reading, one a line, then its tables."""
    for what, text in view.lines():
        terminal.line(f"{what:<10}  {text}")
    for headers, rows in view.tables():
        terminal.line()
        terminal.table(headers, rows, WORDS)
