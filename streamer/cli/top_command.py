"""`streamer top`."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from streamer.cli.connect import add_socket, engine_client
from streamer.cli.exit_codes import Exit
from streamer.cli.status_view import (
    DATASET_HEADERS,
    MEMBER_HEADERS,
    PEER_HEADERS,
    SESSION_HEADERS,
    WORDS,
    Row,
    StatusView,
)
from streamer.cli.terminal import Terminal
from streamer.extras import require

if TYPE_CHECKING:
    from rich.console import JustifyMethod, RenderableType

    from streamer.client.engine_client import EngineClient

# Waits for so many seconds; whether there is a next look.
Pause: TypeAlias = "Callable[[float], bool]"

# Left out in a terminal with few lines, in this order.
_LEAST_IMPORTANT = ("disk", "process", "tail", "loop", "first byte", "in flight")

# Rows of the members of mixes.
_MOST_MEMBERS = 8

# Columns that may be cut, and what of the others may not.
_LONG = ("url", "bottleneck")
_MOST_LETTERS = 16

HELP = "what an engine does, live"

DESCRIPTION = """\
The figures of `streamer stat`, again and again: rates and waiting shares are those of the last interval. In a terminal
the picture stays in place until q or Ctrl-C; elsewhere each look is one line. An engine that is restarted is followed.
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
    """Looks until q or Ctrl-C, which is how it is meant to end, or as often as asked."""
    if terminal.out.isatty():
        require("streamer top", "cli", "rich", field="top")
    with contextlib.suppress(KeyboardInterrupt), engine_client(arguments) as client, _keys() as pause:
        pictures = looks(client, arguments.interval, arguments.count, pause)
        show = _live if terminal.out.isatty() else _plain
        show(pictures, terminal)
    return Exit.DONE


def looks(client: EngineClient, interval: float, count: int | None, pause: Pause) -> Iterator[StatusView]:
    """Pictures of the intervals; the first one is of the engine's life so far.

    Args:
        client: of the engine.
        interval: seconds between two looks.
        count: how many; None: until `pause` says so.
        pause: waits for so many seconds; False: it was the last look.
    """
    before, number = None, 0
    while True:
        now = client.statistics()
        yield StatusView(now, before)
        before, number = now, number + 1
        if number == count or not pause(interval):
            return


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


def render(picture: StatusView, columns: int, lines: int) -> RenderableType:
    """One look for a terminal of that size: what matters least is left out where not all has room."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    shown = fitting(picture, columns, lines)
    figures = Table.grid(padding=(0, 2))
    figures.add_column(style="bold")
    figures.add_column(no_wrap=True)
    for what, text in shown.figures:
        figures.add_row(what, Text(text))
    parts: list[RenderableType] = [figures]
    tables = (
        (DATASET_HEADERS, shown.datasets),
        (PEER_HEADERS, shown.peers),
        (MEMBER_HEADERS, shown.members),
        (SESSION_HEADERS, shown.sessions),
    )
    for headers, rows in tables:
        if rows:
            parts += [Text(), _table(headers, rows, columns)]
    parts += [Text(remark) for remark in shown.remarks]
    return Group(*parts)


class Shown(NamedTuple):
    """What of a picture is shown; each row takes one line."""

    figures: list[Row]
    datasets: list[Row]
    peers: list[Row]
    members: list[Row]
    sessions: list[Row]
    remarks: list[str]

    def height(self, columns: int) -> int:
        """Lines that it takes."""
        tables = sum(2 + len(rows) for rows in (self.datasets, self.peers, self.members, self.sessions) if rows)
        return len(self.figures) + tables + sum(-(-len(remark) // columns) for remark in self.remarks)


def fitting(picture: StatusView, columns: int, lines: int) -> Shown:
    """As much as has room: less important figures go first, then the tables, and sessions that wait least."""
    sessions = picture.session_rows()
    # Where the last column is cut, what the first of them has to say stands below.
    advice = [text] if _width(SESSION_HEADERS, sessions) > columns and (text := picture.worst_advice()) else []
    tables = picture.dataset_rows(), picture.peer_rows(), picture.member_rows(_MOST_MEMBERS)
    shown = Shown(list(picture.lines()), *tables, sessions, advice)
    for what in _LEAST_IMPORTANT:
        if shown.height(columns) > lines:
            shown = shown._replace(figures=[row for row in shown.figures if row[0] != what])
    if shown.height(columns) > lines:
        shown = shown._replace(datasets=[])
    if shown.height(columns) > lines:
        shown = shown._replace(peers=[])
    if shown.height(columns) > lines:
        shown = shown._replace(members=[])
    if (missing := shown.height(columns) - lines) <= 0:
        return shown
    kept = max(1, len(shown.sessions) - missing - 1)
    left_out = f"and {len(shown.sessions) - kept} more that wait less"
    return shown._replace(sessions=shown.sessions[:kept], remarks=[left_out, *advice])


def _width(headers: Row, rows: list[Row]) -> int:
    """Letters in the longest line of a table."""
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
        # Text: what clients call themselves is no markup.
        table.add_row(*map(Text, row))
    return table


def _plain(pictures: Iterator[StatusView], terminal: Terminal) -> None:
    for picture in pictures:
        terminal.line(plain_line(picture))


def _live(pictures: Iterator[StatusView], terminal: Terminal) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(file=terminal.out)
    with Live(console=console, auto_refresh=False) as live:
        for picture in pictures:
            live.update(render(picture, console.width, console.height), refresh=True)


@contextlib.contextmanager
def _keys() -> Iterator[Pause]:
    """Waits between two looks that the key q ends, where there is a keyboard."""
    if not sys.stdin.isatty():
        yield _slept
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield lambda seconds: _no_q(sys.stdin.fileno(), seconds)
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _slept(seconds: float) -> bool:
    time.sleep(seconds)
    return True


def _no_q(keyboard: int, seconds: float) -> bool:
    """Waits; False as soon as q is pressed."""
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
