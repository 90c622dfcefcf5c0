"""What was to be shown, and what was found."""

from __future__ import annotations

import time
from collections.abc import Callable


def least_cpu(call: Callable[[], object], runs: int) -> float:
    """CPU seconds of this process, of the fastest of some runs."""
    found = []
    for _ in range(runs):
        start = time.process_time()
        call()
        found.append(time.process_time() - start)
    return min(found)


class Bounds:
    """Collects figures with their bounds; prints them at the end."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, what: str, found: float, bound: float, unit: str = "", *, least: bool = False) -> None:
        """One figure: at most the bound, or at least."""
        met = found >= bound if least else found <= bound
        sign = ">=" if least else "<="
        self._lines.append(f"{'ok  ' if met else 'MISS'} {what}: {found:.4g}{unit} ({sign} {bound:g}{unit})")

    def report(self) -> None:
        """Prints them."""
        print("\nbounds")
        for line in self._lines:
            print(line)
