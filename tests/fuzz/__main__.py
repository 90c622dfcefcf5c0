"""Fuzzes all targets in turn for some time: python -m tests.fuzz --seconds 3600

Prints inputs, refusals and failures of each. Inputs that fail are kept in build/fuzz/TARGET/, five for each place in
the code, with the traceback beside them; `--replay FILE` reads one again. The exit status is 1 if there is any.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import random
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

from tests.fuzz.targets import TARGETS, Target, change, check

FOLDER = Path(__file__).parents[2] / "build" / "fuzz"
# Of one target before the next one's turn.
_TURN_SECONDS = 10.0
_KEPT_OF_A_PLACE = 5


class Run:
    """Fuzzes one target: its counts, and what has failed."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.inputs = 0
        self.refused = 0
        self.failed = Counter[str]()
        self.seconds = 0.0
        self._drawn = random.Random(f"{seed} {name}")
        self._target: Target | None = None

    def go_on(self, seconds: float) -> None:
        """Reads inputs for so long, at least one."""
        if self._target is None:
            self._target = TARGETS[self.name]()
            for label, content in self._target.seeds:
                # Imports what it needs, which is no memory of an input.
                self._target.read(label, content)
        begun = time.monotonic()
        while True:
            label, content = change(self._target, self._drawn)
            self.inputs += 1
            try:
                self.refused += check(self._target, label, content)
            except Exception as error:  # noqa: BLE001 - any is a finding, which is kept
                self._keep(label, content, error)
            if time.monotonic() - begun >= seconds:
                break
        self.seconds += time.monotonic() - begun

    def _keep(self, label: str, content: bytes, error: Exception) -> None:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{type(error).__name__} at {last.filename}:{last.lineno}"
        self.failed[place] += 1
        if self.failed[place] > _KEPT_OF_A_PLACE:
            return
        folder = FOLDER / self.name
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / hashlib.sha256(content).hexdigest()[:16]
        path.write_bytes(content)
        path.with_suffix(".txt").write_text(f"{label}\n{''.join(traceback.format_exception(error))}")
        print(f"{self.name}: {place}: {error}; kept as {path}", flush=True)


def replay(path: Path) -> None:
    """Reads an input that was kept, and raises what it raises."""
    label, _, _ = path.with_suffix(".txt").read_text().partition("\n")
    refused = check(TARGETS[path.parent.name](), label, path.read_bytes())
    print("refused" if refused else "read")


def _silence_libraries() -> None:
    """Sends what libraries in C print of each damaged file to nowhere, and no sentence of ours to the log."""
    logging.disable(logging.CRITICAL)
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600.0, help="in all, without the making of the seeds")
    parser.add_argument("--seed", type=int, default=None, help="of the changes; another one each time without it")
    parser.add_argument("--replay", type=Path, help="an input that was kept")
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(TARGETS)}")
    given = parser.parse_args()
    if given.replay is not None:
        replay(given.replay)
        return 0
    if unknown := set(given.targets) - set(TARGETS):
        parser.error(f"no targets: {', '.join(sorted(unknown))}")
    _silence_libraries()
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(2**32)
    runs = [Run(name, seed) for name in given.targets or TARGETS]
    turn = min(_TURN_SECONDS, given.seconds / len(runs))
    print(f"{len(runs)} targets, seed {seed}", flush=True)
    while sum(run.seconds for run in runs) < given.seconds:
        for run in runs:
            run.go_on(turn)
    print(f"{'target':24} {'inputs':>10} {'refused':>10} {'failed':>8} {'a second':>9}")
    for run in runs:
        rate = run.inputs / run.seconds
        print(f"{run.name:24} {run.inputs:10,} {run.refused:10,} {run.failed.total():8,} {rate:9,.0f}")
    return int(any(run.failed for run in runs))


if __name__ == "__main__":
    sys.exit(main())
