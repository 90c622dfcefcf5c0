"""How many accelerators are fed: which number to try next. Pure."""

from __future__ import annotations

from collections.abc import Mapping


def next_count(fed: Mapping[int, bool], most: int) -> int | None:
    """The next number to try: doubled until one is not fed, then halved between the two.

    Args:
        fed: numbers that were tried, and whether all of so many were fed.
        most: the largest number to try.

    Returns:
        None: the largest number that is fed is known.
    """
    best = max((count for count, enough in fed.items() if enough), default=0)
    worst = min((count for count, enough in fed.items() if not enough and count > best), default=None)
    if worst is None:
        return min(most, max(1, 2 * best)) if best < most else None
    return (best + worst) // 2 if worst - best > 1 else None
