"""`streamer top`."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from streamer.base.extras import require
from streamer.cli.connect import add_engine_options, engine_client
from streamer.cli.exit_codes import Exit
from streamer.cli.status_view import WORDS, Row, StatusView
from streamer.cli.terminal import Terminal

if TYPE_CHECKING:
    from rich.console import JustifyMethod, RenderableType

    from streamer.client.engine_client import EngineClient

# Waits for a number of seconds; returns whether there is a next look.
Pause = Callable[[float], bool]
# Figures that are left out in a terminal with few lines, in this order.
_LEAST_IMPORTANT = ("disk", "process", "tail", "loop", "first byte", "in flight")
# Most rows of the members of mixes.
_MOST_MEMBERS = 8
# Columns that may be cut, and the letters of the others that are never cut.
_LONG = ("url", "bottleneck")
_MOST_LETTERS = 16

HELP = "what an engine does, live"

DESCRIPTION = """\
The figures of `streamer stat`, again and again: rates and waiting shares are those of the last interval. In a terminal
the figures stay in place until q or Ctrl-C; elsewhere each look is one line. An engine that is restarted is followed.
"""

EXAMPLES = """\
examples:
  streamer top
  streamer top --interval 5 --socket /run/streamer/engine.sock
  streamer top --count 60 >> engine.log      an hour, one line a minute, with --interval 60
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    add_engine_options(parser)
    parser.add_argument("--interval", type=_seconds, default=1.0, metavar="S", help="between two looks (default: 1)")
    parser.add_argument("--count", type=int, metavar="N", help="end after N looks (default: never)")


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Shows the statistics until q or Ctrl-C, or as often as asked."""
    if terminal.out.isatty():
        require("streamer top", "cli", "rich", field="top")
    with contextlib.suppress(KeyboardInterrupt), engine_client(arguments) as client, _keys() as pause:
        views = looks(client, arguments.interval, arguments.count, pause)
        show = _live if terminal.out.isatty() else _plain
        show(views, terminal)
    return Exit.DONE


def looks(client: EngineClient, interval: float, count: int | None, pause: Pause) -> Iterator[StatusView]:
    """Yields the statistics of each interval; the first one is the engine's life so far.

    Args:
        client: client of the engine.
        interval: seconds between two looks.
        count: number of looks, None to go on until `pause` returns False.
        pause: waits for a number of seconds; returns whether there is a next look.
    """
    before = None
    number = 0
    while True:
        now = client.statistics()
        yield StatusView(now, before)
        before = now
        number = number + 1
        if number == count or not pause(interval):
            return


def plain_line(view: StatusView) -> str:
    """Formats one look as one line."""
    rates = view.rates
    figures = {what: text for what, text in view.lines() if what in ("in flight", "first byte", "hits", "fill")}
    waiting = max(map(view.wait_share, view.sessions), default=0.0)
    return (
        f"store {rates.store_bytes / 1e6:.1f} MB/s  cache {rates.cache_bytes / 1e6:.1f} MB/s  "
        + "  ".join(f"{what} {text}" for what, text in figures.items())
        + f"  sessions {len(view.sessions)}  waiting {waiting:.1%}{view.worst_loader()}"
    )


def render(view: StatusView, columns: int, lines: int) -> RenderableType:
    """Draws one look for a terminal of that size; leaves out the least important parts if there is not enough space."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    shown = fit_view(view, columns, lines)
    figures = Table.grid(padding=(0, 2))
    figures.add_column(style="bold")
    figures.add_column(no_wrap=True)
    for what, text in shown.figures:
        figures.add_row(what, Text(text))
    parts: list[RenderableType] = [figures]
    for headers, rows in shown.tables:
        parts += [Text(), _table(headers, rows, columns)]
    parts += [Text(remark) for remark in shown.remarks]
    return Group(*parts)


class Shown(NamedTuple):
    """The parts of a look that are shown; each row takes one line."""

    figures: list[Row]
    tables: list[tuple[Row, list[Row]]]
    remarks: list[str]

    def height(self, columns: int) -> int:
        """Number of lines."""
        tables = sum(2 + len(rows) for _, rows in self.tables)
        return len(self.figures) + tables + sum(-(-len(remark) // columns) for remark in self.remarks)


def fit_view(view: StatusView, columns: int, lines: int) -> Shown:
    """Drops less important figures first, then the other tables, then the sessions that wait least."""
    tables = view.tables(_MOST_MEMBERS)
    # The sessions are the last table. If their last column is cut, the text of the first of them follows below.
    is_cut = bool(view.sessions) and _width(*tables[-1]) > columns
    advice = [text] if is_cut and (text := view.worst_advice()) else []
    shown = Shown(list(view.lines()), tables, advice)
    for what in _LEAST_IMPORTANT:
        if shown.height(columns) > lines:
            shown = shown._replace(figures=[row for row in shown.figures if row[0] != what])
    while len(shown.tables) > bool(view.sessions) and shown.height(columns) > lines:
        shown = shown._replace(tables=shown.tables[1:])
    missing = shown.height(columns) - lines
    if missing <= 0 or not shown.tables:
        return shown
    ((headers, sessions),) = shown.tables
    kept = max(1, len(sessions) - missing - 1)
    left_out = f"and {len(sessions) - kept} more that wait less"
    return shown._replace(tables=[(headers, sessions[:kept])], remarks=[left_out, *advice])


def _width(headers: Row, rows: list[Row]) -> int:
    """Number of letters in the longest line of a table."""
    return sum(2 + max(map(len, column)) for column in zip(headers, *rows, strict=True)) - 2


def _table(headers: Row, rows: list[Row], columns: int) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    exact = [0 if header in _LONG else min(_MOST_LETTERS, width) for header, width in zip(headers, widths, strict=True)]
    # Urls and advice give way where the columns do not fit: a number or a rank that is cut would be another one.
    room = columns - sum(exact) - 2 * (len(headers) - 1)
    for header, width, least in zip(headers, widths, exact, strict=True):
        justify: JustifyMethod = "left" if header in (headers[0], *WORDS) else "right"
        most = min(width, max(1, room)) if header in _LONG else None
        table.add_column(header, justify=justify, no_wrap=True, min_width=least, max_width=most)
    for row in rows:
        # Text, because names chosen by clients are not markup.
        table.add_row(*map(Text, row))
    return table


def _plain(views: Iterator[StatusView], terminal: Terminal) -> None:
    for view in views:
        terminal.line(plain_line(view))


def _live(views: Iterator[StatusView], terminal: Terminal) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(file=terminal.out)
    with Live(console=console, auto_refresh=False) as live:
        for view in views:
            live.update(render(view, console.width, console.height), refresh=True)


@contextlib.contextmanager
def _keys() -> Iterator[Pause]:
    """Yields a function that waits between two looks, until the key q is pressed if there is a keyboard."""
    if not sys.stdin.isatty():
        yield lambda seconds: not select.select([], [], [], seconds)[0]
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield lambda seconds: _no_q(sys.stdin.fileno(), seconds)
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _no_q(keyboard: int, seconds: float) -> bool:
    """Waits; returns False as soon as q is pressed."""
    end = time.monotonic() + seconds
    while select.select([keyboard], [], [], max(0.0, end - time.monotonic()))[0]:
        if (keys := os.read(keyboard, 64)) == b"" or b"q" in keys.lower():
            return False
    return True


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds
