"""Output of the commands: rich, if installed, on an interactive terminal; plain lines elsewhere."""

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
    """The progress of a running task."""

    def update(self, done: int, total: int | None, text: str = "") -> None:
        """Reports that `done` of `total` units are finished; `total` is None while unknown."""
        ...


class Terminal:
    """Standard output for results, standard error for progress and errors."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.out = sys.stdout if out is None else out
        self.err = sys.stderr if err is None else err
        self._bar: _RichProgress | None = None

    @property
    def lively(self) -> bool:
        """Whether progress is shown as bars: the standard error is a terminal, and rich is installed."""
        return self.err.isatty() and find_spec("rich") is not None

    def line(self, text: str = "") -> None:
        """Writes a line of the result, without control characters and secrets: names in it may be a stranger's."""
        print(_printable(without_controls(text)), file=self.out, flush=True)

    def draw(self, line: str) -> None:
        """Writes a line unchanged; its control characters are colours that a command has set itself."""
        print(line, file=self.out, flush=True)

    def note(self, text: str) -> None:
        """Writes a line to the standard error: it is for the user, not for a script that reads the result."""
        text = without_controls(text)
        if self._bar is None:
            print(_printable(text), file=self.err, flush=True)
        else:
            self._bar.line_above(text)

    def error(self, text: str) -> None:
        """Writes an error in one line."""
        line = f"streamer: {' '.join(without_controls(text).split())}"
        print(_printable(line), file=self.err, flush=True)

    @contextmanager
    def progress(self, title: str, unit: str) -> Iterator[ProgressLine]:
        """Shows a bar, or lines, for one task.

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
        """Writes aligned columns; the first is text, the others are numbers unless their headers are among `words`."""
        # Names in it may be a stranger's: each cell stays on its line.
        rows = [[_escape_lines(cell) for cell in row] for row in rows]
        if self.out.isatty() and find_spec("rich") is not None:
            from rich.console import Console
            from rich.table import Table
            from rich.text import Text

            table = Table(box=None, header_style="bold", pad_edge=False)
            for column, header in enumerate(headers):
                table.add_column(header, justify="left" if column == 0 or header in words else "right")
            for row in rows:
                # Text, because names chosen by clients are not markup.
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
    """Prints the figures with --json, and writes the files of --json-file and --plot.

    Args:
        arguments: those of `options.add_figures`.
        terminal: where the figures go, and the names of the files.
        figures: values by name, for JSON.
        save_plot: draws the figures to a file; None if the command has no plot.

    Raises:
        ConfigError: a file cannot be written.
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
    """Returns the lines of a table without any drawing; arguments as for `Terminal.table`."""
    widths = [max(len(row[i]) for row in [headers, *rows]) for i in range(len(headers))]
    left = [column == 0 or header in words for column, header in enumerate(headers)]
    form = "  ".join(f"{{:{'<' if is_left else '>'}{width}}}" for width, is_left in zip(widths, left, strict=True))
    return [form.format(*row).rstrip() for row in [headers, *rows]]


def _printable(text: str) -> str:
    """Returns a text without secrets of urls, and with escapes for what is not UTF-8, as names of files may be."""
    return without_secrets(text).encode("utf-8", "backslashreplace").decode()


def _escape_lines(text: str) -> str:
    return without_controls(text).replace("\n", "\\n")


def amount(count: int, unit: str) -> str:
    """Returns a count with its unit, "bytes" or a plural: 1.4 GB, 2,000 images."""
    from streamer.config import format_bytes

    return format_bytes(count) if unit == "bytes" else f"{count:,.0f} {unit}"


def progress_text(done: int, total: int | None, unit: str, text: str) -> str:
    """Returns progress in words: 1.0 kB of 5.0 kB, 3 of 4 images, 17 chunks; `text` is a remark behind it, or ""."""
    if total is None:
        shown = amount(done, unit)
    elif unit == "bytes":
        shown = f"{amount(done, unit)} of {amount(total, unit)}"
    else:
        shown = f"{done:,.0f} of {amount(total, unit)}"
    return f"{shown}  {text}" if text else shown


class _PlainProgress:
    """A line at the beginning, one every few seconds, and one at the end."""

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
    """A moving bar."""

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
