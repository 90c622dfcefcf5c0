"""Small bars of the last looks of `streamer top`: a letter for each span of time, as high as the mean of its looks."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from streamer.cli.status_view import StatusView, session_name

# Number of looks that are kept: a minute, where there is one a second.
LOOKS = 60
# Bars of these widths stand for whole numbers of looks.
WIDTHS = (60, 30, 20, 15, 12, 10)
# Letters of the heights, the lowest first.
BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = "_.:-=+*#"
# Figures whose highest bar is 100 %; that of the others is the highest mean in sight.
_SHARES = ("hits", "fill", "waiting")
_SAMPLES_LOOKS = 10

Key = tuple[object, ...]


class RecentLooks:
    """The last looks at an engine, as bars.

    A figure of the engine has its name as the key, as ("store",); one of a session has the session's name before its
    own, as (job, consumer, dataset, "waiting").

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
        """Adds a look; one that has no look before it, as after a restart of the engine, is a gap."""
        self._looks.append(read_figures(view) if view.is_of_interval else {})
        self._count += 1

    def draw(self, key: Key, width: int) -> str:
        """Draws the bars of a figure: `width` letters, the newest last, or "" if no look has it."""
        looks = [look.get(key) for look in self._looks]
        if all(value is None for value in looks):
            return ""
        means = merge_looks(looks, self._count, width)
        return draw_bars(means, self.levels, 1.0 if key[-1] in _SHARES else None)

    def samples_per_second(self, session: Key) -> float | None:
        """Returns the mean over the last ten looks, so that steps of several seconds have a rate; None if unknown."""
        recent = list(self._looks)[-_SAMPLES_LOOKS:]
        return mean_known(look.get((*session, "samples/s")) for look in recent)


def read_figures(view: StatusView) -> dict[Key, float]:
    """Returns the figures of one interval that have bars; those that are unknown are left out."""
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
    """Returns the means of spans of equal length, as many as `width`; None where no look of a span knows the figure.

    The spans begin at fixed looks, so that a bar stays as it is once its span is over.

    Args:
        looks: values of the last looks, at most `LOOKS`, the newest last.
        count: number of looks so far, those that are not kept included.
        width: one of `WIDTHS`.
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
    """Draws a letter for each value, and a space for one that is unknown. Only what is above 0 leaves the lowest level.

    Args:
        values: numbers of any unit.
        levels: letters of the heights, the lowest first.
        top: value of the highest level; by default the largest of the values.
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
    """Returns the largest width of bars that fits; the smallest one where none does."""
    return next((width for width in WIDTHS if width <= columns), WIDTHS[-1])


def choose_levels(encoding: str | None, environment: Mapping[str, str]) -> str:
    """Returns blocks, or letters of ASCII where blocks cannot be shown.

    That is in the locale C and in encodings without them, and on the console of Linux, whose fonts lack most of them.
    No locale at all, as in a container, leaves it to the encoding.

    Args:
        encoding: encoding of what is written.
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
    """Returns the mean of the values that are known; None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
