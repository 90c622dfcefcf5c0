"""Writes the output of all commands: with rich, if it is installed, on an interactive terminal, else as plain lines.

`main.py` makes the terminal that each command gets. Names in the output may come from others. So control characters
are written as escapes, and logins and signatures of urls are left out.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol, TextIO

from streamer.errors import ConfigError, without_controls, without_secrets

# Seconds between two lines of progress where there is no bar, as in a log file.
PLAIN_INTERVAL_SECONDS = 5.0


class ProgressLine(Protocol):
    """Shows the progress of one running task; see `Terminal.progress`."""

    def update(self, done: int, total: int | None, text: str = "") -> None:
        """Shows that `done` of `total` units are finished (None while the total is not known), and a remark."""
        ...


class Terminal:
    """Writes results to the standard output, and progress, notes and errors to the standard error.

    Args:
        out: replaces the standard output.
        err: replaces the standard error.
    """

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.out = sys.stdout if out is None else out
        self.err = sys.stderr if err is None else err
        self._bar: _RichProgress | None = None

    @property
    def lively(self) -> bool:
        """Whether progress is shown as bars: the standard error is a terminal, and rich is installed."""
        return self.err.isatty() and find_spec("rich") is not None

    def line(self, text: str = "") -> None:
        """Writes a line of the result to the standard output."""
        print(_printable(text), file=self.out, flush=True)

    def draw(self, line: str) -> None:
        """Writes a line unchanged, since its control characters are colours that the command has set itself."""
        print(line, file=self.out, flush=True)

    def note(self, text: str) -> None:
        """Writes a line for the user, not for a script that reads the result, to the standard error, above any bar."""
        text = _printable(text)
        if self._bar is None:
            print(text, file=self.err, flush=True)
        else:
            self._bar.line_above(text)

    def error(self, text: str) -> None:
        """Writes an error to the standard error, in one line."""
        print(f"streamer: {' '.join(_printable(text).split())}", file=self.err, flush=True)

    @contextmanager
    def progress(self, title: str, unit: str) -> Iterator[ProgressLine]:
        """Shows the progress of one task while the block runs: as a bar if `lively`, else as lines.

        Args:
            title: name of the task.
            unit: "bytes", or the plural of the counted items.
        """
        if self.lively:
            with _RichProgress(title, unit, self.err) as bar:
                self._bar = bar
                try:
                    yield bar
                finally:
                    self._bar = None
        else:
            yield _PlainProgress(title, unit, self)

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[str] = ()) -> None:
        """Writes a table: the first column and those of `words` are aligned left, the others, of numbers, right.

        Args:
            headers: header of each column.
            rows: cells of each row.
            words: headers of columns whose cells are words.
        """
        # A name in a cell may have line breaks, but each row is one line.
        rows = [[_escape_lines(cell) for cell in row] for row in rows]
        if self.out.isatty() and find_spec("rich") is not None:
            from rich.console import Console
            from rich.table import Table
            from rich.text import Text

            table = Table(box=None, header_style="bold", pad_edge=False)
            for column, header in enumerate(headers):
                table.add_column(header, justify="left" if column == 0 or header in words else "right")
            for row in rows:
                # Cells are made Text, because brackets in names would be markup in a str.
                table.add_row(*map(Text, row))
            Console(file=self.out).print(table)
        else:
            for line in plain_table(headers, rows, words):
                self.line(line)


def write_figures(
    arguments: argparse.Namespace,
    terminal: Terminal,
    figures: Mapping[str, object],
    save_plot: Callable[[Path], None] | None = None,
) -> None:
    """Prints the figures of a measurement with --json, and writes the files of --json-file and --plot.

    Args:
        arguments: those of `options.add_figures`.
        terminal: where the figures and the names of the files are shown.
        figures: values by name, which JSON can hold.
        save_plot: draws the figures to a file; None if the command has no plot.

    Raises:
        ConfigError: a file cannot be written. Errors of `save_plot` other than OSError pass.
    """
    # A program that reads the JSON finds nothing else on the standard output.
    show = terminal.note if arguments.json else terminal.line
    if arguments.json:
        terminal.line(json.dumps(figures))
    try:
        if arguments.json_file is not None:
            arguments.json_file.write_text(json.dumps(figures, indent=1))
            show(f"figures: {arguments.json_file}")
        if arguments.plot is not None and save_plot is not None:
            save_plot(arguments.plot)
            show(f"curves: {arguments.plot}")
    except OSError as error:
        raise ConfigError(f"cannot write {error.filename}: {error.strerror}", field="plot") from error


def plain_table(headers: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[str] = ()) -> list[str]:
    """Returns a table as lines of aligned columns; the arguments are those of `Terminal.table`."""
    widths = [max(len(row[i]) for row in [headers, *rows]) for i in range(len(headers))]
    left = [column == 0 or header in words for column, header in enumerate(headers)]
    form = "  ".join(f"{{:{'<' if is_left else '>'}{width}}}" for width, is_left in zip(widths, left, strict=True))
    return [form.format(*row).rstrip() for row in [headers, *rows]]


def _printable(text: str) -> str:
    """Returns a text without secrets of urls, with escapes for control characters and for bytes that are not UTF-8."""
    return without_secrets(without_controls(text)).encode("utf-8", "backslashreplace").decode()


def _escape_lines(text: str) -> str:
    return _printable(text).replace("\n", "\\n")


def amount(count: int, unit: str) -> str:
    """Returns a count with its unit, "bytes" or a plural: 1.4 GB, 2,000 images."""
    from streamer.config import format_bytes

    return format_bytes(count) if unit == "bytes" else f"{count:,.0f} {unit}"


def progress_text(done: int, total: int | None, unit: str, text: str) -> str:
    """Returns progress in words: 1.0 kB of 5.0 kB, 3 of 4 images, or 17 chunks if there is no total.

    Args:
        done: finished units.
        total: all units; None if not known.
        unit: "bytes", or the plural of the counted items.
        text: remark to follow, or "".
    """
    if total is None:
        shown = amount(done, unit)
    elif unit == "bytes":
        shown = f"{amount(done, unit)} of {amount(total, unit)}"
    else:
        shown = f"{done:,.0f} of {amount(total, unit)}"
    return f"{shown}  {text}" if text else shown


class _PlainProgress:
    """Writes progress as lines: one at the beginning, one every few seconds, and one at the end."""

    def __init__(self, title: str, unit: str, terminal: Terminal) -> None:
        self._title = title
        self._unit = unit
        self._terminal = terminal
        self._next = 0.0

    def update(self, done: int, total: int | None, text: str = "") -> None:
        now = time.monotonic()
        if now < self._next and done != total:
            return
        self._next = now + PLAIN_INTERVAL_SECONDS
        shown = progress_text(done, total, self._unit, text)
        self._terminal.note(_escape_lines(f"{self._title}: {shown}"))


class _RichProgress:
    """Shows progress as a moving bar of rich, from the start to the end of a `with` block."""

    def __init__(self, title: str, unit: str, err: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        self._unit = unit
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            TimeRemainingColumn(),
        )
        self._bars = Bars(*columns, console=Console(file=err))
        self._task = self._bars.add_task(_escape_lines(title), total=None, text="")

    def __enter__(self) -> _RichProgress:
        self._bars.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bars.stop()

    def update(self, done: int, total: int | None, text: str = "") -> None:
        shown = progress_text(done, total, self._unit, _escape_lines(text))
        self._bars.update(self._task, completed=done, total=total, text=shown)

    def line_above(self, text: str) -> None:
        """Writes a line that the bar will not overwrite."""
        self._bars.console.print(text, markup=False, highlight=False, soft_wrap=True)
