"""A plan in words, and as curves. Pure, except for the plot's file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from streamer.config import counted, format_bytes
from streamer.manifest.table import Manifest
from streamer.planning.model import WAITING_BOUND, Plan, Prices, Setting
from streamer.planning.search import Limits, Needed

HEADERS = ("epoch", "from the store", "requests", "USD", "hits", "seconds", "waiting")


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Everything that a plan is about.

    Attributes:
        limits: None where they were not searched.
    """

    manifest: Manifest
    setting: Setting
    prices: Prices
    plan: Plan
    limits: Limits | None

    def plain(self) -> dict[str, object]:
        """For JSON."""
        return {
            "dataset": self.manifest.digest,
            "setting": asdict(self.setting),
            "prices": asdict(self.prices),
            "plan": asdict(self.plan),
            "limits": None if self.limits is None else asdict(self.limits),
        }


def rows(figures: Figures) -> list[tuple[str, ...]]:
    """A line for each epoch."""
    return [
        (
            "1, cold" if number == 1 else str(number),
            format_bytes(epoch.fetched_bytes),
            f"{epoch.requests:,}",
            f"{epoch.price(figures.prices):.2f}",
            f"{epoch.hit_share:.1%}",
            f"{epoch.seconds:,.1f}",
            f"{epoch.waiting_share:.1%}",
        )
        for number, epoch in enumerate(figures.plan.epochs, 1)
    ]


def assumptions(figures: Figures) -> Iterator[str]:
    """What is planned, and with which figures."""
    manifest, setting, job = figures.manifest, figures.setting, figures.setting.job
    world, link = job.nodes * job.ranks_per_node, setting.link
    yield (
        f"{counted(manifest.samples, 'samples')} in {counted(manifest.chunks, 'chunks')}, "
        f"{format_bytes(manifest.total_bytes)}; {counted(world, 'ranks')} on {counted(job.nodes, 'nodes')}, "
        f"{job.batch_size * world:,} samples and {job.step_seconds:g} s a step"
    )
    yield (
        f"each node: a cache of {format_bytes(setting.cache_bytes)}, a link of "
        f"{format_bytes(link.bytes_per_second)}/s, {link.first_byte_seconds * 1e3:.0f} ms to the first byte"
    )
    if not job.sample_seconds:
        yield "reading and decoding are taken to be free; --sample-seconds counts them"


def conclusions(figures: Figures) -> Iterator[str]:
    """What follows from it."""
    yield f"first batch after {figures.plan.first_batch_seconds:.1f} s"
    if figures.limits is None:
        return
    cache, link = figures.limits.cache_bytes, figures.limits.link_bytes_per_second
    if cache.least is None and link.least is None:
        yield "neither a larger cache nor a faster link ends the waiting: the workers are too few or too slow"
        return
    bound = f"at most {WAITING_BOUND:.0%} waiting after the first epoch"
    yield f"{bound}: a cache of {_bytes(cache)} on each node with this link"
    yield f"{bound}: a link of {_bytes(link, '/s')} to each node with this cache"


def _bytes(needed: Needed, unit: str = "") -> str:
    return "no size" if needed.least is None else format_bytes(needed.least) + unit


def save_plot(figures: Figures, path: Path) -> None:
    """Waiting over the size of the cache, and over the rate of the link."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    limits, setting = figures.limits, figures.setting
    assert limits is not None
    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    caches, links = figure.subplots(1, 2, sharey=True)
    curves = (
        (caches, limits.cache_bytes, setting.cache_bytes, 1e9, "cache of each node, GB"),
        (links, limits.link_bytes_per_second, setting.link.bytes_per_second, 1e6, "link of each node, MB/s"),
    )
    for axes, needed, chosen, unit, label in curves:
        axes.plot(
            [point.value / unit for point in needed.points],
            [100 * point.waiting_share for point in needed.points],
            marker="o",
        )
        axes.axvline(chosen / unit, linestyle="--", color="0.4", label="as planned")
        axes.axhline(100 * WAITING_BOUND, linestyle=":", color="0.4")
        axes.set(xlabel=label)
        axes.grid(alpha=0.3)
        axes.legend()
    links.set(xscale="log")
    caches.set(ylabel="waiting in the second epoch, %", ylim=(0, 100))
    figure.savefig(path, dpi=120)
