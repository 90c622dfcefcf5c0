"""Implements `streamer top`, which shows the statistics of a running engine again and again. `main.py` runs it.

A *look* is one reading of the statistics. In a terminal it fills the screen, elsewhere it is one line.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import select
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from streamer.base.extras import require_modules
from streamer.cli.connect import add_engine_options, engine_client
from streamer.cli.exit_codes import Exit
from streamer.cli.options import count_parts, positive_number
from streamer.cli.sparklines import ASCII, RecentLooks, choose_levels, choose_width
from streamer.cli.status_view import WORDS, Row, StatusView, session_name
from streamer.cli.terminal import Terminal

if TYPE_CHECKING:
    from rich.console import JustifyMethod, OverflowMethod, RenderableType

    from streamer.client.engine_client import EngineClient

# Waits for a number of seconds; returns whether there is a next look.
Pause = Callable[[float], bool]
# A table: its headers and its rows.
HeadedRows = tuple[Row, list[Row]]
# Lines about the engine that are left out in a terminal with few lines, in this order.
_LEAST_IMPORTANT = ("disk", "process", "tail", "loop", "refusals", "first byte", "in flight")
# Columns of the table of sessions that a live look adds around that of waiting, and those columns of the whole table
# that are left out in a narrow terminal, in this order.
_SAMPLES_BARS = "samples/s: bars"
_WAITING_BARS = "waiting: bars"
_AROUND_WAITING = ("samples/s", _SAMPLES_BARS, "waiting", _WAITING_BARS)
_DROPPED_FIRST = ("hits", "epoch", "step", _SAMPLES_BARS, "bottleneck", "loader", "samples/s", _WAITING_BARS)
_SESSION_BARS = 10
_BARS_HEADER = "60 looks"
# Letters before the bars of a line about the engine: its name and a long text. A longer text takes the place of the
# oldest bars, unless fewer than `_LEAST_BARS` would be left.
_TEXT_LETTERS = 63
_LEAST_BARS = 5
# Rows of the members of mixes, at most.
_MAX_MEMBERS = 8
# Headers of columns that are cut if a line has too little room, and the letters that they keep while other columns can
# be left out instead. Other columns are never cut below `_MAX_LETTERS` letters.
_LONG = ("url", "bottleneck")
_LONG_LETTERS = 10
_MAX_LETTERS = 16

HELP = "what an engine does, live"

DESCRIPTION = """\
Shows the figures of `streamer stat`, again and again: rates and waiting shares are those of the last interval.
"""

EXAMPLES = """\
examples:
  streamer top
  streamer top --interval 5 --socket /run/streamer/engine.sock
  # an hour, one line a minute
  streamer top --count 60 --interval 60 >> engine.log
"""

NOTES = """\
In a terminal the figures stay in place until q or Ctrl-C, beside bars of the last 60 looks; elsewhere each look is one
line. An engine that is restarted is followed, and is a gap in the bars.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    add_engine_options(parser)
    output = parser.add_argument_group("output")
    output.add_argument(
        "--interval", type=positive_number, default=1.0, metavar="SECONDS", help="between two looks (default: 1)"
    )
    output.add_argument("--count", type=count_parts, metavar="N", help="end after N looks (default: never)")


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Shows the statistics until q or Ctrl-C, or as often as --count says.

    Raises:
        ConfigError: the terminal needs rich, which is not installed, or several engines run.
        StreamerError: no engine can be asked, or not any more; see `connect.engine_client` and `looks`.
    """
    if terminal.out.isatty():
        require_modules("streamer top", "cli", "rich", field="top")
    with contextlib.suppress(KeyboardInterrupt), engine_client(arguments) as client, _keys() as pause:
        views = looks(client, arguments.interval, arguments.count, pause)
        if terminal.out.isatty():
            # There is nothing to draw of a single look.
            _live(views, terminal, has_bars=arguments.count != 1)
        else:
            _plain(views, terminal)
    return Exit.DONE


def looks(client: EngineClient, interval: float, count: int | None, pause: Pause) -> Iterator[StatusView]:
    """Yields looks, each with the one before it for rates. Those of the first look are since the engine's start.

    Args:
        client: client of the engine.
        interval: seconds between two looks.
        count: number of looks, or None to go on until `pause` returns False.
        pause: waits for a number of seconds; returns whether there is a next look.

    Raises:
        StreamerError: the engine cannot be asked any more.
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


def render(view: StatusView, columns: int, lines: int, recent: RecentLooks | None = None) -> RenderableType:
    """Draws one look for a terminal of this size, without less important parts if there is too little room.

    Args:
        view: look to draw.
        columns: letters of a line.
        lines: lines of the terminal.
        recent: looks up to this one, to draw bars of them; None for no bars.
    """
    from rich.console import Group
    from rich.text import Text

    shown = fit_view(view, columns, lines, recent)
    # A terminal that cannot show bars has no ellipsis either.
    overflow: OverflowMethod = "crop" if recent is not None and recent.levels == ASCII else "ellipsis"
    parts: list[RenderableType] = []
    for what, text in shown.figures:
        line = f"{what:<10}  {text}"
        figure = Text(_add_bars(line, what, columns, recent), no_wrap=True, overflow=overflow)
        figure.stylize("bold", 0, len(what))
        parts.append(figure)
    for headers, rows in shown.tables:
        parts += [Text(), _table(headers, rows, columns, overflow)]
    parts += [Text(remark) for remark in shown.remarks]
    return Group(*parts)


def _add_bars(line: str, figure: str, columns: int, recent: RecentLooks | None) -> str:
    """Returns a line about the engine with the bars of its figure, as many as there is room for."""
    if recent is None:
        return line
    width = choose_width(columns - _TEXT_LETTERS)
    end = min(columns, _TEXT_LETTERS + width)
    room = min(width, end - len(line) - 2)
    bars = recent.draw((figure,), width)
    return f"{line:<{end - room}}{bars[-room:]}" if bars and room >= _LEAST_BARS else line


class Shown(NamedTuple):
    """The parts of a look that are shown.

    Attributes:
        figures: lines about the engine, name and text of each.
        tables: tables, each with an empty line above it.
        remarks: lines below the tables.
    """

    figures: list[Row]
    tables: list[HeadedRows]
    remarks: list[str]

    @property
    def height(self) -> int:
        """Number of lines that all parts take."""
        return len(self.figures) + sum(2 + len(rows) for _, rows in self.tables) + len(self.remarks)


def fit_view(view: StatusView, columns: int, lines: int, recent: RecentLooks | None = None) -> Shown:
    """Chooses what is shown of a look in a terminal of this size; the arguments are those of `render`.

    Less important lines about the engine are dropped first, then the tables before that of the sessions, and at last
    the sessions that wait least.
    """
    figures: list[Row] = list(view.lines())
    tables = view.tables(_MAX_MEMBERS)
    if recent is not None:
        figures.append(("refusals", f"{view.rates.refusals:,.1f}/s"))
        if view.sessions:
            tables[-1] = fit_sessions(view, tables[-1], columns, recent)
    # The sessions are the last table. If its last column is cut, the advice for the first session follows below.
    is_cut = bool(view.sessions) and ("bottleneck" not in tables[-1][0] or _width(*tables[-1]) > columns)
    advice = textwrap.wrap(view.worst_advice(), columns) if is_cut else []
    shown = Shown(figures, tables, advice)
    for what in _LEAST_IMPORTANT:
        if shown.height > lines:
            shown = shown._replace(figures=[row for row in shown.figures if row[0] != what])
    while len(shown.tables) > bool(view.sessions) and shown.height > lines:
        shown = shown._replace(tables=shown.tables[1:])
    missing = shown.height - lines
    if missing <= 0 or not shown.tables:
        return shown
    ((headers, sessions),) = shown.tables
    kept = max(1, len(sessions) - missing - 1)
    left_out = textwrap.wrap(f"and {len(sessions) - kept} more that wait less", columns)
    return shown._replace(tables=[(headers, sessions[:kept])], remarks=[*left_out, *advice])


def fit_sessions(view: StatusView, table: HeadedRows, columns: int, recent: RecentLooks) -> HeadedRows:
    """Returns the table of sessions with samples/s and bars, without the columns for which a line has no room.

    Args:
        view: the look.
        table: table of its sessions.
        columns: letters of a line.
        recent: looks up to this one.
    """
    headers, rows = table
    names = [session_name(session) for session in view.sessions]
    rates = [recent.samples_per_second(name) for name in names]
    cells: dict[str, Row] = {
        **dict(zip(headers, zip(*rows, strict=True), strict=True)),
        "samples/s": tuple("-" if rate is None else f"{rate:,.0f}" for rate in rates),
        _SAMPLES_BARS: tuple(recent.draw((*name, "samples/s"), _SESSION_BARS) for name in names),
        _WAITING_BARS: tuple(recent.draw((*name, "waiting"), _SESSION_BARS) for name in names),
    }
    titles = {_SAMPLES_BARS: _BARS_HEADER, _WAITING_BARS: _BARS_HEADER}
    shown = [name for header in headers for name in (_AROUND_WAITING if header == "waiting" else (header,))]
    for dropped in (None, *_DROPPED_FIRST):
        shown = [name for name in shown if name != dropped]
        widths = [max(map(len, (titles.get(name, name), *cells[name]))) for name in shown]
        least = [
            min(_LONG_LETTERS if name in _LONG else _MAX_LETTERS, width)
            for name, width in zip(shown, widths, strict=True)
        ]
        if sum(least) + 2 * (len(least) - 1) <= columns:
            break
    return tuple(titles.get(name, name) for name in shown), list(zip(*(cells[name] for name in shown), strict=True))


def _width(headers: Row, rows: list[Row]) -> int:
    """Returns the letters of a table's line, if no cell is cut."""
    return sum(2 + max(map(len, column)) for column in zip(headers, *rows, strict=True)) - 2


def _table(headers: Row, rows: list[Row], columns: int, overflow: OverflowMethod) -> RenderableType:
    """Draws a table within so many letters; cuts only columns of `_LONG`, by `overflow`."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    exact = [0 if header in _LONG else min(_MAX_LETTERS, width) for header, width in zip(headers, widths, strict=True)]
    # Urls and advice are cut where the columns do not fit: a number that is cut would be another number.
    room = columns - sum(exact) - 2 * (len(headers) - 1)
    for header, width, least in zip(headers, widths, exact, strict=True):
        justify: JustifyMethod = "left" if header in (headers[0], *WORDS) else "right"
        most = min(width, max(1, room)) if header in _LONG else None
        table.add_column(header, justify=justify, no_wrap=True, min_width=least, max_width=most, overflow=overflow)
    for row in rows:
        # Cells are made Text, because brackets in names would be markup in a str.
        table.add_row(*map(Text, row))
    return table


def _plain(views: Iterator[StatusView], terminal: Terminal) -> None:
    for view in views:
        terminal.line(plain_line(view))


def _live(views: Iterator[StatusView], terminal: Terminal, *, has_bars: bool) -> None:
    """Shows each look in place of the one before, with bars of the last ones if asked."""
    from rich.console import Console
    from rich.live import Live

    if isinstance(terminal.out, io.TextIOWrapper):
        # Names of clients may have letters that the terminal's encoding lacks.
        terminal.out.reconfigure(errors="replace")
    recent = RecentLooks(choose_levels(terminal.out.encoding, os.environ)) if has_bars else None
    console = Console(file=terminal.out)
    with Live(console=console, auto_refresh=False) as live:
        for view in views:
            if recent is not None:
                recent.add(view)
            live.update(render(view, console.width, console.height, recent), refresh=True)


@contextlib.contextmanager
def _keys() -> Iterator[Pause]:
    """Yields the function that waits between two looks, and ends the wait if the key q is pressed on a keyboard.

    Meanwhile a keyboard sends each key at once; its settings are restored afterwards.
    """
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
    """Waits for so many seconds; returns False as soon as q is pressed or the keyboard is gone, else True."""
    end = time.monotonic() + seconds
    while select.select([keyboard], [], [], max(0.0, end - time.monotonic()))[0]:
        if (keys := os.read(keyboard, 64)) == b"" or b"q" in keys.lower():
            return False
    return True
