"""`streamer top`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from streamer.cli.connect import add_socket, engine_client
from streamer.cli.exit_codes import Exit
from streamer.cli.status_view import DATASET_HEADERS, SESSION_HEADERS, WORDS, Row, StatusView
from streamer.cli.terminal import Terminal

if TYPE_CHECKING:
    from rich.console import RenderableType

    from streamer.client.engine_client import EngineClient

HELP = "what an engine does, live"

DESCRIPTION = """\
The figures of `streamer stat`, again and again: rates and waiting shares are those of the last interval. In a terminal
the picture stays in place until Ctrl-C; elsewhere each look is one line. An engine that is restarted is followed.
"""

EXAMPLES = """\
examples:
  streamer top
  streamer top --interval 5 --socket /run/streamer/engine.sock
  streamer top --count 60 >> engine.log      an hour, one line a minute, with --interval 60
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options."""
    add_socket(parser)
    parser.add_argument("--interval", type=_seconds, default=1.0, metavar="S", help="between two looks (default: 1)")
    parser.add_argument("--count", type=int, metavar="N", help="end after N looks (default: never)")


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Looks until Ctrl-C, or as often as asked."""
    with engine_client(arguments) as client:
        pictures = looks(client, arguments.interval, arguments.count)
        show = _live if terminal.out.isatty() else _plain
        show(pictures, terminal)
    return Exit.DONE


def looks(
    client: EngineClient, interval: float, count: int | None, sleep: Callable[[float], None] = time.sleep
) -> Iterator[StatusView]:
    """Pictures of the intervals; the first one is of the engine's life so far."""
    before, number = None, 0
    while True:
        now = client.statistics()
        yield StatusView(now, before)
        before, number = now, number + 1
        if number == count:
            return
        sleep(interval)


def plain_line(picture: StatusView) -> str:
    """One look as one line."""
    rates = picture.rates
    figures = {what: text for what, text in picture.lines() if what in ("in flight", "first byte", "hits", "fill")}
    waiting = max(map(picture.waiting, picture.sessions), default=0.0)
    return (
        f"store {rates.store_bytes / 1e6:.1f} MB/s  cache {rates.cache_bytes / 1e6:.1f} MB/s  "
        + "  ".join(f"{what} {text}" for what, text in figures.items())
        + f"  sessions {len(picture.sessions)}  waiting {waiting:.1%}{picture.worst_loader()}"
    )


def render(picture: StatusView) -> RenderableType:
    """One look for a terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    figures = Table.grid(padding=(0, 2))
    figures.add_column(style="bold")
    figures.add_column()
    for what, text in picture.lines():
        figures.add_row(what, Text(text))
    parts: list[RenderableType] = [figures]
    for headers, rows in ((DATASET_HEADERS, picture.dataset_rows()), (SESSION_HEADERS, picture.session_rows())):
        if rows:
            parts += [Text(), _table(headers, rows)]
    return Group(*parts)


def _table(headers: Row, rows: list[Row]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column, header in enumerate(headers):
        table.add_column(header, justify="left" if column == 0 or header in WORDS else "right")
    for row in rows:
        # Text: what clients call themselves is no markup.
        table.add_row(*map(Text, row))
    return table


def _plain(pictures: Iterator[StatusView], terminal: Terminal) -> None:
    for picture in pictures:
        terminal.line(plain_line(picture))


def _live(pictures: Iterator[StatusView], terminal: Terminal) -> None:
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(file=terminal.out), auto_refresh=False) as live:
        for picture in pictures:
            live.update(render(picture), refresh=True)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds
