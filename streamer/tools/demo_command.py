"""`streamer demo`."""

from __future__ import annotations

import argparse
from pathlib import Path

from streamer.cli.exit_codes import Exit
from streamer.cli.options import count, size
from streamer.cli.terminal import Terminal
from streamer.errors import ConfigError

HELP = "train on a bucket, through the cache, on this machine"

DESCRIPTION = """\
Starts an S3 server of its own, draws 2,000 images, uploads them, and trains a small network on them with two
ranks and a cache of half the data. In the middle of epoch 3 it kills the engine; training goes on. At the end: a
table and curves of what was measured in this run. Needs pip install 'streamer-data[demo]', no network, and a minute.
"""

EXAMPLES = """\
examples:
  streamer demo                              table on the terminal, tools/demo/curves.png, tools/demo/results.json
  streamer demo --seed 18                    other images, another order
  streamer demo --layout folder              the same images as 2,000 small objects
  streamer demo --link 0 --kill-epoch 0      a store without a limit, no process is killed
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("--images", type=count, default=2000, metavar="N", help="how many to draw (default: 2000)")
    parser.add_argument("--epochs", type=count, default=4, metavar="N", help="default: 4")
    parser.add_argument("--ranks", type=count, default=2, metavar="N", help="processes that train (default: 2)")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="worker processes of a rank (default: 1)")
    parser.add_argument("--seed", type=int, default=17, metavar="N", help="of the images and the order (default: 17)")
    parser.add_argument("--layout", choices=("tars", "folder"), default="tars", help="what to train on (default: tars)")
    parser.add_argument(
        "--link", type=size, default=10_000_000, metavar="SIZE", help="what the store sends per second (default: 10MB)"
    )
    parser.add_argument(
        "--kill-epoch", type=int, default=3, metavar="N", help="the engine is killed in it; 0: never (default: 3)"
    )
    parser.add_argument("--out", type=Path, default=Path("demo"), metavar="DIR", help="default: demo")


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Runs the demo and shows the measurements."""
    _check_installed()
    # A folder that cannot be written is reported before the run, not after it.
    arguments.out.mkdir(parents=True, exist_ok=True)
    from streamer.tools.demo import report
    from streamer.tools.demo.run import DemoOptions, run_demo
    from streamer.tools.demo.server import Link

    options = DemoOptions(
        images=arguments.images,
        epochs=arguments.epochs,
        ranks=arguments.ranks,
        workers=arguments.workers,
        seed=arguments.seed,
        layout=arguments.layout,
        kill_epoch=arguments.kill_epoch,
        link=Link(first_byte_seconds=0.03, bytes_per_second=arguments.link),
    )
    measured = run_demo(options, terminal)
    terminal.line()
    terminal.table(report.HEADERS, report.table(measured))
    terminal.line()
    for remark in report.remarks(measured):
        terminal.line(remark)
    results, curves = report.save(measured, arguments.out)
    terminal.line(f"curves: {curves}   figures: {results}")
    return Exit.DONE


def _check_installed() -> None:
    """Checks the needed packages, instead of failing in the middle."""
    from importlib.util import find_spec

    missing = [name for name in ("torch", "PIL", "matplotlib", "moto", "s3fs", "aiohttp") if find_spec(name) is None]
    if missing:
        raise ConfigError(f"the demo needs {', '.join(missing)}: pip install 'streamer-data[demo]'", field="demo")
