"""What was to be shown, and what was found."""

from __future__ import annotations


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
