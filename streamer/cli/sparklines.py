"""Draws the last looks of `streamer top` as small bars, one letter each. Used by `top_command.py`. No I/O.

A *look* is one reading of an engine's statistics (`StatusView`). A bar stands for a span of one or more looks, and is
as high as their mean. Figures are numbers with a name, such as "hits".
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from streamer.cli.status_view import StatusView, session_name

# Number of looks that are kept: those of a minute, if there is one a second.
LOOKS = 60
# Numbers of bars in a row; a bar then stands for a whole number of looks.
WIDTHS = (60, 30, 20, 15, 12, 10)
# Letters of the heights, the lowest first.
BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = "_.:-=+*#"
# Figures whose highest bar is 100 %. The highest bar of any other figure is the largest mean that is shown.
_SHARES = ("hits", "fill", "waiting")
# Looks of which the rate of samples is the mean.
_SAMPLES_LOOKS = 10

# Names a figure: ("store",) of the engine, (job, consumer, dataset, "waiting") of a session.
Key = tuple[object, ...]


class RecentLooks:
    """Keeps the figures of the last looks at an engine, and draws them as bars.

    Args:
        levels: letters of the heights, the lowest first.
    """

    def __init__(self, levels: str = BLOCKS) -> None:
        self.levels = levels
        self._looks: deque[dict[Key, float]] = deque(maxlen=LOOKS)
        self._count = 0

    def __repr__(self) -> str:
        return f"RecentLooks({len(self._looks)} looks)"

    def add(self, view: StatusView) -> None:
        """Adds a look. One without rates, the first of all or of an engine that was started again, becomes a gap."""
        self._looks.append(read_figures(view) if view.is_of_interval else {})
        self._count += 1

    def draw(self, key: Key, width: int) -> str:
        """Draws the bars of a figure, the newest last; "" if no look has it.

        Args:
            key: the figure.
            width: number of bars, one of `WIDTHS`.
        """
        looks = [look.get(key) for look in self._looks]
        if all(value is None for value in looks):
            return ""
        means = merge_looks(looks, self._count, width)
        return draw_bars(means, self.levels, 1.0 if key[-1] in _SHARES else None)

    def samples_per_second(self, session: Key) -> float | None:
        """Returns a session's mean rate over the last ten looks, so that steps of several seconds have one, too.

        Args:
            session: the session's name; see `status_view.session_name`.

        Returns:
            Samples per second, or None if no look has the rate.
        """
        recent = list(self._looks)[-_SAMPLES_LOOKS:]
        return mean_known(look.get((*session, "samples/s")) for look in recent)


def read_figures(view: StatusView) -> dict[Key, float]:
    """Returns the figures of a look that have bars, by key; those that are not known are left out."""
    rates = view.rates
    found: dict[Key, float | None] = {
        ("store",): rates.store_bytes,
        ("cache",): rates.cache_bytes,
        ("peers",): rates.peer_bytes,
        ("in flight",): view.in_flight,
        ("first byte",): view.first_byte_seconds,
        ("hits",): view.hit_share,
        ("fill",): view.fill,
        ("refusals",): rates.refusals,
    }
    for session in view.sessions:
        name = session_name(session)
        found[*name, "samples/s"] = view.samples_per_second(session)
        found[*name, "waiting"] = view.wait_share(session)
    return {key: value for key, value in found.items() if value is not None}


def merge_looks(looks: Sequence[float | None], count: int, width: int) -> list[float | None]:
    """Returns the mean of each span of looks, the newest last, or None for a span in which no look has a value.

    Spans are counted from the first look of all, so that a mean does not change once its span is over.

    Args:
        looks: values of the last looks, at most `LOOKS`, the newest last, None where a look has none.
        count: number of looks so far, also of those that are not kept.
        width: number of spans, one of `WIDTHS`.
    """
    span = LOOKS // width
    newest = (count - 1) // span
    merged: list[list[float | None]] = [[] for _ in range(width)]
    for number, value in enumerate(looks, count - len(looks)):
        place = width - 1 - (newest - number // span)
        if place >= 0:
            merged[place].append(value)
    return [mean_known(values) for values in merged]


def draw_bars(values: Iterable[float | None], levels: str = BLOCKS, top: float | None = None) -> str:
    """Draws a letter for each value. A value above 0 is never drawn as the lowest letter, which stands for 0.

    Args:
        values: numbers of any unit. None, where one is not known, is drawn as a space, as NaN and infinity are.
        levels: letters of the heights, the lowest first.
        top: value of the highest letter, or None for the largest of the values.
    """
    known = [value if value is not None and math.isfinite(value) else None for value in values]
    if top is None:
        top = max((value for value in known if value is not None), default=0.0)
    highest = len(levels) - 1
    bars = ""
    for value in known:
        if value is None:
            bars += " "
        elif value <= 0 or top <= 0:
            bars += levels[0]
        else:
            bars += levels[max(1, math.ceil(min(1.0, value / top) * highest))]
    return bars


def choose_width(columns: int) -> int:
    """Returns the largest of `WIDTHS` that fits into so many columns, or the smallest one if none does."""
    return next((width for width in WIDTHS if width <= columns), WIDTHS[-1])


def choose_levels(encoding: str | None, environment: Mapping[str, str]) -> str:
    """Returns `BLOCKS`, or `ASCII` if the terminal cannot show blocks.

    It cannot in the locale C, in an encoding that lacks them, and on the console of Linux, whose fonts lack many of
    them. If no locale is set, as in a container, the encoding alone decides.

    Args:
        encoding: encoding of the output; None is taken for ASCII.
        environment: environment variables.
    """
    locale = next((environment[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if environment.get(name)), "")
    if locale in ("C", "POSIX") or environment.get("TERM") == "linux":
        return ASCII
    try:
        BLOCKS.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS


def mean_known(values: Iterable[float | None]) -> float | None:
    """Returns the mean of the values that are not None; None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
