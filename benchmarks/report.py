"""What a benchmark leaves behind: what it prints, below a line that names the day and the machine, and its command."""

from __future__ import annotations

import contextlib
import io
import os
import platform
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

RESULTS = Path(__file__).parent / "results"


def result(name: str, suffix: str = "txt") -> Path:
    """Where today's result of this name is kept."""
    RESULTS.mkdir(exist_ok=True)
    return RESULTS / f"{name}-{datetime.now(UTC):%Y-%m-%d}.{suffix}"


@contextlib.contextmanager
def kept(name: str, *more: str, keep: bool = True) -> Iterator[None]:
    """Keeps what is printed in this context, if it ends well.

    Args:
        name: of the file in `results/`, without date.
        more: versions and conditions that the figures depend on.
        keep: print only, where false.
    """
    copy = io.StringIO()
    with contextlib.redirect_stdout(_Both(sys.stdout, copy)):
        print(", ".join([f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", *_machine(), *more]))
        print(_command())
        yield
    if keep:
        result(name).write_text(copy.getvalue())


# By name: the lines above a table, its size, and what yields the lines of a table of that size.
Tables = dict[str, tuple[str, int, Callable[[int], Iterator[str]]]]


def print_tables(tables: Tables, only: str | None, scale: int) -> None:
    """Prints all tables, or one of them; their sizes are divided by `scale`."""
    for name in [only] if only else tables:
        head, count, lines = tables[name]
        print(f"\n{head}")
        for line in lines(count // scale):
            print(line)


class _Both(io.TextIOBase):
    """Writes to the terminal at once, and to a copy."""

    def __init__(self, terminal: TextIO, copy: TextIO) -> None:
        self._terminal = terminal
        self._copy = copy

    def write(self, text: str, /) -> int:
        self._terminal.write(text)
        self._terminal.flush()
        return self._copy.write(text)


def _machine() -> Iterator[str]:
    yield f"{os.cpu_count()} cores of {_processor()}"
    yield f"Linux {platform.release().split('-')[0]}" if sys.platform == "linux" else platform.platform()
    yield f"Python {platform.python_version()}"
    yield f"load {os.getloadavg()[0]:.1f}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(": ", 1)[1] for line in lines if line.startswith("model name")), platform.machine())


def _command() -> str:
    """How to run it again; where folders lie says nothing elsewhere."""
    words = ("DIR" if os.path.isabs(word) else word for word in sys.argv[1:])
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *words])
