"""The table and the curves of a demo run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from streamer.config import format_bytes
from streamer.tools.demo.events import Step
from streamer.tools.demo.measured import EpochRow, Measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEADERS = ("epoch", "seconds", "samples/s", "waiting", "hits", "from store", "requests", "loss", "correct")

# Throughput over time is drawn as the mean over this many seconds.
WINDOW_SECONDS = 1.0
# Two hues that differ also for those who do not see red and green apart (Okabe and Ito, 2008).
BLUE = "#0072b2"
ORANGE = "#d55e00"


def table(measured: Measured) -> list[tuple[str, ...]]:
    """Returns the rows below HEADERS: the index, then every epoch."""
    index = measured.index
    first = ("index", "", "", "", "", format_bytes(index.read_bytes), f"{index.reads:,}", "", "")
    killed = None if measured.kill is None else measured.kill.epoch
    return [first, *(_row(row, killed=row.epoch == killed) for row in measured.rows)]


def _row(row: EpochRow, *, killed: bool) -> tuple[str, ...]:
    return (
        f"{row.epoch + 1}{' (engine killed)' if killed else ''}",
        f"{row.seconds:.1f}",
        f"{row.samples_per_second:,.0f}",
        f"{row.wait_share:.0%}",
        f"{row.usage.hit_share:.0%}",
        format_bytes(row.store.read_bytes),
        f"{row.store.reads:,}",
        f"{row.loss:.3f}",
        f"{row.accuracy:.0%}",
    )


def remarks(measured: Measured) -> list[str]:
    """Returns the results that are not in the table."""
    bound = min(1.0, measured.cache_bytes / measured.dataset_bytes)
    lines = [
        f"dataset {format_bytes(measured.dataset_bytes)} in {measured.chunks} chunks, "
        f"cache limit {format_bytes(measured.cache_bytes)}: no rule can hit more than {bound:.0%} of an epoch",
        "waiting: share of the ranks' time; hits: share of the bytes that needed no request; from store: counted by "
        "the store between the ends of the epochs, so the look-ahead into the next epoch is in it",
        f"sample keys in order, all ranks and epochs: {measured.keys}",
    ]
    if measured.kill is not None:
        row = next(row for row in measured.rows if row.epoch == measured.kill.epoch)
        lines.append(
            f"engine {measured.kill.pid} was killed (SIGKILL) in epoch {measured.kill.epoch + 1}; engine "
            f"{measured.kill.successor} took over; longest wait for a batch in that epoch "
            f"{row.longest_wait_seconds:.2f} s"
        )
    return lines


def save(measured: Measured, folder: Path) -> tuple[Path, Path]:
    """Writes `results.json` and `curves.png`; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    results = folder / "results.json"
    curves = folder / "curves.png"
    results.write_bytes(msgspec.json.format(msgspec.json.encode(measured), indent=1) + b"\n")
    draw(measured, curves)
    return results, curves


def throughput(steps: Sequence[Step], window_seconds: float = WINDOW_SECONDS) -> tuple[list[float], list[float]]:
    """Computes the samples per second of all ranks over time.

    Returns:
        Seconds since the first step, and the values.
    """
    if not steps:
        return [], []
    start = min(step.at_seconds for step in steps)
    windows = int((max(step.at_seconds for step in steps) - start) / window_seconds) + 1
    samples = [0] * windows
    for step in steps:
        samples[int((step.at_seconds - start) / window_seconds)] += step.samples
    return [(i + 0.5) * window_seconds for i in range(windows)], [count / window_seconds for count in samples]


def draw(measured: Measured, path: Path) -> None:
    """Draws the same figures as curves."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 7), layout="constrained")
    FigureCanvasAgg(figure)
    rows = measured.rows
    panels = figure.subplot_mosaic("aaa;bcd;efg", height_ratios=(1.3, 1, 1))
    _draw_time(panels["a"], measured)
    _draw_epochs(panels["b"], rows, "samples/s", [row.samples_per_second for row in rows])
    _draw_epochs(panels["c"], rows, "waiting for data, % of time", [100 * row.wait_share for row in rows])
    _draw_epochs(panels["d"], rows, "hits, % of bytes", [100 * row.usage.hit_share for row in rows])
    _draw_epochs(panels["e"], rows, "from the store, MB", [row.store.read_bytes / 1e6 for row in rows])
    _draw_epochs(panels["f"], rows, "requests to the store", [row.store.reads for row in rows])
    _draw_epochs(panels["g"], rows, "loss", [row.loss for row in rows])
    bound = min(1.0, measured.cache_bytes / measured.dataset_bytes)
    _line(panels["d"], 100 * bound, "what the cache can hold")
    _line(panels["e"], measured.dataset_bytes / 1e6, "the whole dataset")
    figure.suptitle(
        f"streamer demo: {format_bytes(measured.dataset_bytes)} of images, cache of "
        f"{format_bytes(measured.cache_bytes)}, {len({step.rank for step in measured.steps})} ranks"
    )
    figure.savefig(path, dpi=110)


def _draw_time(axes: Axes, measured: Measured) -> None:
    seconds, values = throughput(measured.steps)
    # Without the last window, which the end of the run cuts short: its mean would look like a fall.
    axes.plot(seconds[:-1], values[:-1], color=BLUE, drawstyle="steps-mid")
    start = min(step.at_seconds for step in measured.steps)
    for row in measured.rows:
        begin = min(step.at_seconds for step in measured.steps if step.epoch == row.epoch) - start
        axes.axvline(begin, color="0.8", zorder=0)
        axes.annotate(f" epoch {row.epoch + 1}", (begin, 1), xycoords=("data", "axes fraction"), va="top", color="0.4")
    if measured.kill is not None:
        end = measured.kill.at_seconds - start
        axes.axvline(end, color=ORANGE, linestyle="--")
        axes.annotate(" engine killed", (end, 0.03), xycoords=("data", "axes fraction"), va="bottom", color=ORANGE)
    axes.set(xlabel="seconds", ylabel="samples/s", ylim=(0, max(values) * 1.2), xlim=(0, None))
    _plain(axes)


def _draw_epochs(axes: Axes, rows: Sequence[EpochRow], title: str, values: Sequence[float]) -> None:
    axes.plot([row.epoch + 1 for row in rows], values, "o-", color=BLUE)
    axes.set(title=title, ylim=(0, max([*values, 1e-9]) * 1.15), xticks=[row.epoch + 1 for row in rows])
    _plain(axes)


def _line(axes: Axes, value: float, text: str) -> None:
    axes.axhline(value, color=ORANGE, linestyle=":", linewidth=1)
    axes.annotate(text, (1, value), xycoords=("axes fraction", "data"), ha="right", va="bottom", color=ORANGE, size=8)
    axes.set_ylim(0, max(axes.get_ylim()[1], 1.25 * value))


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.92")
    axes.set_axisbelow(True)
