"""`make demo`, or `python -m examples.demo` in a clone after pip install '.[demo]'. Needs no network, and a minute."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from examples.bucket.store import Link
from examples.demo.report import describe, save
from examples.demo.run import DemoOptions, run_demo
from streamer.cli.options import rate
from streamer.errors import StreamerError

parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
parser.add_argument("--seed", type=int, default=17, metavar="N", help="of the images and the order (default: 17)")
parser.add_argument(
    "--link", type=rate, default="10MB/s", metavar="RATE", help="what the store sends; 0/s: no limit (default: 10MB/s)"
)
parser.add_argument("--kill-epoch", type=int, default=3, metavar="N", help="0: the engine is not killed (default: 3)")
parser.add_argument(
    "--out", type=Path, default=Path("demo"), metavar="DIR", help="for curves and figures (default: demo)"
)
arguments = parser.parse_args()
# A folder that cannot be written is reported before the run, not after it.
arguments.out.mkdir(parents=True, exist_ok=True)
link = Link(first_byte_seconds=0.03, bytes_per_second=arguments.link)
try:
    measured = run_demo(DemoOptions(seed=arguments.seed, kill_epoch=arguments.kill_epoch, link=link))
except StreamerError as error:
    sys.exit(f"demo: {error}")
results, curves = save(measured, arguments.out)
print(f"\ncurves: {curves}   figures: {results}\n\n{describe(measured)}")
