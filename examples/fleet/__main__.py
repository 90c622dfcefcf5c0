"""Runs the demonstration; shows the table, and saves figures and picture."""

from __future__ import annotations

import argparse
from pathlib import Path

from examples.fleet import report
from examples.fleet.run import FleetOptions, run_fleet
from streamer.cli.terminal import Terminal


def main() -> None:
    """Reads the options and runs it."""
    parser = argparse.ArgumentParser(prog="python -m examples.fleet", description=run_fleet.__doc__)
    parser.add_argument("--seed", type=int, default=17, metavar="N", help="of the images and the order (default: 17)")
    parser.add_argument("--out", type=Path, default=Path("demo"), metavar="DIR", help="default: demo")
    arguments, terminal = parser.parse_args(), Terminal()
    arguments.out.mkdir(parents=True, exist_ok=True)
    measured = run_fleet(FleetOptions(seed=arguments.seed))
    terminal.line()
    terminal.table(report.HEADERS, report.table(measured), report.WORDS)
    terminal.line()
    for remark in report.remarks(measured):
        terminal.line(remark)
    results, picture = report.save(measured, arguments.out)
    terminal.line(f"picture: {picture}   figures: {results}")


if __name__ == "__main__":
    main()
