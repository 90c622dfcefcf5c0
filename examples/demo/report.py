"""The table of a run, what bounds it in words, and the curves."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from examples.demo.run import Epoch, Measured

# Two hues that differ also for those who do not see red and green apart (Okabe and Ito, 2008).
BLUE = "#0072b2"
ORANGE = "#d55e00"


def make_row(number: int, epoch: Epoch, measured: Measured) -> dict[str, float]:
    """Computes the figures of one epoch over all ranks; shares are from 0 to 1.

    `link_wait_share` is the waiting that the link makes unavoidable: the time in which it carries this epoch's bytes,
    as far as that exceeds the time of the training steps. `core_wait_share` is the same of this machine's cores, which
    work for the store, the engine, the workers and the training at once. Hits are bytes that the store did not send;
    `kept_share` is the share of the data that the cache keeps from one epoch to the next, beside the chunks that are
    open or on their way.
    """
    ends = epoch.ends.values()
    rank_seconds = sum(end["seconds"] for end in ends)
    waits = [step["wait_seconds"] for step in epoch.steps]
    step_seconds = (rank_seconds - sum(waits)) / len(ends)
    rate = measured.options.link.bytes_per_second
    link_seconds = epoch.store.read_bytes / rate if rate else 0.0
    core_seconds = epoch.core_busy_share * epoch.seconds
    samples = sum(end["samples"] for end in ends)
    seconds = max(end["seconds"] for end in ends)
    return {
        "samples": samples,
        "seconds": seconds,
        "samples_per_second": samples / seconds,
        "wait_share": sum(waits) / rank_seconds,
        "longest_wait_seconds": max(waits),
        "link_wait_share": 1 - step_seconds / max(step_seconds, link_seconds),
        "core_wait_share": 1 - step_seconds / max(step_seconds, core_seconds),
        "link_busy_share": min(1.0, link_seconds / epoch.seconds),
        "core_busy_share": epoch.core_busy_share,
        "hit_share": max(0.0, 1 - epoch.store.read_bytes / measured.dataset_bytes),
        "kept_share": sum(epoch.kept_shares) / len(epoch.kept_shares) if number > 1 else 0.0,
        "store_mb": epoch.store.read_bytes / 1e6,
        "requests": epoch.store.reads,
        "loss": sum(step["loss"] for step in epoch.steps) / len(epoch.steps),
        "correct": sum(end["right"] for end in ends) / samples,
    }


def make_rows(measured: Measured) -> list[dict[str, float]]:
    return [make_row(number, epoch, measured) for number, epoch in enumerate(measured.epochs, 1)]


COLUMNS = {
    "seconds": ("seconds", "{:.1f}"),
    "samples/s": ("samples_per_second", "{:,.0f}"),
    "waiting": ("wait_share", "{:.0%}"),
    "(link)": ("link_wait_share", "{:.0%}"),
    "(cores)": ("core_wait_share", "{:.0%}"),
    "hits": ("hit_share", "{:.0%}"),
    "(cache)": ("kept_share", "{:.0%}"),
    "from store": ("store_mb", "{:.1f} MB"),
    "requests": ("requests", "{:,.0f}"),
    "loss": ("loss", "{:.3f}"),
    "correct": ("correct", "{:.0%}"),
}


def describe(measured: Measured) -> str:
    """Returns the table, the words below it, and last what bounds each epoch."""
    index = {"from store": f"{measured.index.read_bytes / 1e6:.1f} MB", "requests": str(measured.index.reads)}
    rows = make_rows(measured)
    lines = [["epoch", *COLUMNS], ["index", *(index.get(name, "") for name in COLUMNS)]]
    for number, row in enumerate(rows, 1):
        name = f"{number} (engine killed)" if number == measured.killed.get("epoch") else f"{number}"
        lines.append([name, *(form.format(row[key]) for key, form in COLUMNS.values())])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = ["  ".join([first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])]).rstrip() for first, *rest in lines]
    words = f"""
{measured.dataset_bytes / 1e6:.1f} MB of data, cache limit {measured.cache_bytes / 1e6:.1f} MB.
waiting: share of the ranks' time; (link), (cores): what of it this link and this machine make unavoidable
hits: share of the data that the store did not send; (cache): what this cache keeps from one epoch to the next
from store: counted by the store from the end of the epoch before, look-ahead included
sample keys in order, all ranks and epochs: {measured.digest()}"""
    if killed := measured.killed:
        wait_seconds = rows[killed["epoch"] - 1]["longest_wait_seconds"]
        successor = (
            f"engine {killed['successor']} took over" if killed["successor"] else "no engine was needed any more"
        )
        words += f"""
engine {killed["pid"]} was killed (SIGKILL) in epoch {killed["epoch"]}; {successor}; \
longest wait for a batch in that epoch {wait_seconds:.2f} s"""
    bounds: dict[str, list[str]] = {}
    for number, row in enumerate(rows, 1):
        bounds.setdefault(name_bound(row), []).append(str(number))
    sentences = [f"Epoch {', '.join(numbers)}: bounded by {bound}." for bound, numbers in bounds.items()]
    kept_share = rows[-1]["kept_share"]
    if kept_share:
        cache_share = measured.cache_bytes / measured.dataset_bytes
        sentences.append(
            f"The cache has room for {cache_share:.0%} of the data: it keeps {kept_share:.0%}, which no epoch fetches"
            f" again; {cache_share - kept_share:.0%} are for its catalog and for chunks that are open or on their way."
        )
    return "\n".join([*table, words, "", *sentences])


def name_bound(row: dict[str, float]) -> str:
    if row["link_busy_share"] >= 0.9:
        return "the link to the store, which carried bytes at least 90% of the time"
    if row["wait_share"] <= 0.1:
        return "the training steps, which took at least 90% of the time"
    if row["core_busy_share"] >= 0.9:
        return "this machine's cores, busy at least 90% of the time (store, engine and training share them)"
    return "no single part; link, cores and training all had pauses"


def save(measured: Measured, folder: Path) -> tuple[Path, Path]:
    """Writes `results.json` and `curves.png`, and returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    values = {"rows": make_rows(measured), "keys": measured.digest(), **dataclasses.asdict(measured)}
    (folder / "results.json").write_text(json.dumps(values, indent=1) + "\n")
    draw(measured, folder / "curves.png")
    return folder / "results.json", folder / "curves.png"


def compute_throughput(steps: list[dict[str, Any]], window_seconds: float = 1.0) -> tuple[list[float], list[float]]:
    """Computes the samples per second of all ranks: seconds since the first step, and the mean of each window."""
    start = min(step["at_seconds"] for step in steps)
    samples = [0] * (int((max(step["at_seconds"] for step in steps) - start) / window_seconds) + 1)
    for step in steps:
        samples[int((step["at_seconds"] - start) / window_seconds)] += step["samples"]
    return [(i + 0.5) * window_seconds for i in range(len(samples))], [count / window_seconds for count in samples]


def draw(measured: Measured, path: Path) -> None:
    """Draws the table as curves, with bounds as dotted lines."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 7), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplot_mosaic("aaa;bcd;efg", height_ratios=(1.3, 1, 1))
    rows = make_rows(measured)
    epochs = list(range(1, len(rows) + 1))
    for panel, title, key, bound_keys, scale in (
        ("b", "samples/s", "samples_per_second", (), 1),
        ("c", "waiting, % of time (dotted: link or cores)", "wait_share", ("link_wait_share", "core_wait_share"), 100),
        ("d", "hits, % of the data (dotted: what is kept)", "hit_share", ("kept_share",), 100),
        ("e", "from the store, MB", "store_mb", (), 1),
        ("f", "requests to the store", "requests", (), 1),
        ("g", "loss", "loss", (), 1),
    ):
        values = [scale * row[key] for row in rows]
        bounds = [scale * max(row[each] for each in bound_keys) for row in rows if bound_keys]
        axes[panel].plot(epochs, values, "o-", color=BLUE)
        axes[panel].plot(epochs[: len(bounds)], bounds, ":", color=ORANGE)
        axes[panel].set(title=title, ylim=(0, max([*values, *bounds, 1e-9]) * 1.15), xticks=epochs)
    steps = [step for epoch in measured.epochs for step in epoch.steps]
    start = min(step["at_seconds"] for step in steps)
    seconds, rates = compute_throughput(steps)
    # Without the last window, which the end of the run cuts short: its mean would look like a fall.
    axes["a"].plot(seconds[:-1], rates[:-1], color=BLUE, drawstyle="steps-mid")
    axes["a"].set(xlabel="seconds", ylabel="samples/s", ylim=(0, max(rates) * 1.2), xlim=(0, None))
    marks = [(epoch.steps[0]["at_seconds"], f" epoch {n}", "0.4") for n, epoch in enumerate(measured.epochs, 1)]
    if measured.killed:
        marks.append((measured.killed["at_seconds"], "\n engine killed", ORANGE))
    for at_seconds, text, color in marks:
        axes["a"].axvline(at_seconds - start, color=color, linestyle="--", linewidth=0.8)
        axes["a"].annotate(text, (at_seconds - start, 1), xycoords=("data", "axes fraction"), va="top", color=color)
    for each in axes.values():
        each.spines[["top", "right"]].set_visible(False)
        each.grid(axis="y", color="0.92")
    cache = measured.cache_bytes / measured.dataset_bytes
    figure.suptitle(f"streamer demo: {measured.dataset_bytes / 1e6:.0f} MB of images, a cache of {cache:.0%} of them")
    figure.savefig(path, dpi=110)
