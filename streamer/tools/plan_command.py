"""Implements `streamer plan`, which predicts what a job fetches, costs and waits for. `cli/main.py` runs it.

`planning/` simulates the job; this file measures the link, and shows the results.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from streamer.cli.exit_codes import Exit
from streamer.cli.options import (
    MAX_PARTS,
    add_cache_dir,
    add_dataset,
    add_figures,
    add_join,
    check_places,
    count,
    count_parts,
    number,
    parse_whole,
    rate,
    seed,
    size,
)
from streamer.cli.terminal import Terminal, write_figures
from streamer.config import counted, format_bytes
from streamer.errors import ConfigError

if TYPE_CHECKING:
    from streamer.batches.samples.opened import OpenedDataset
    from streamer.client.engine_client import EngineClient
    from streamer.manifest.table import Manifest
    from streamer.tools.planning.decoding import Decoding
    from streamer.tools.planning.model import EpochPlan, Link, Plan, Prices, Setting, TrainingJob
    from streamer.tools.planning.search import SearchResult, SmallestNeeds

HELP = "predict what a job fetches, costs and waits for"

DESCRIPTION = """\
Simulates a job before it runs: the real order of the samples and the engine's own cache rule, on a link and ranks that
are computed. For each epoch it prints the bytes and requests from the store, their price, the hits and the share of the
time that the training waits; then the smallest cache and the slowest link with which it does not wait.
"""

EXAMPLES = """\
examples:
  streamer plan s3://bucket/train/ --cache-bytes 200GB --batch-size 256 \\
    --step-seconds 0.2
  # four nodes of eight ranks, on a link that need not be measured
  streamer plan s3://bucket/big/ --cache-bytes 2TB --batch-size 256 \\
    --step-seconds 0.2 --nodes 4 --ranks 8 --link 3GB/s
  # with the latents that the samples are joined to
  streamer plan s3://bucket/train/ --cache-bytes 200GB --batch-size 256 \\
    --step-seconds 0.2 --join s3://bucket/latents/:__key__
"""

NOTES = """\
Without --link, the link from this machine is measured for some seconds. docs/plan.md says what the figures are worth.
"""

_HEADERS = ("epoch", "from the store", "requests", "USD", "hits", "seconds", "waiting")
_JOINED = ("of it rows", "in requests")
# Duration of each of the two measurements of the link.
_MEASURED_SECONDS = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    add_dataset(parser)
    chosen = parser.add_argument_group("selection and joins")
    chosen.add_argument(
        "--where", metavar="CONDITION", help="only samples that match, e.g. 'width >= 256' (docs/select.md)"
    )
    add_join(chosen)
    job = parser.add_argument_group("job")
    job.add_argument("--batch-size", type=count, required=True, metavar="N", help="samples of a batch on one rank")
    job.add_argument(
        "--step-seconds",
        type=number,
        required=True,
        metavar="SECONDS",
        help="how long a training step takes when its batch is there",
    )
    job.add_argument("--nodes", type=count_parts, default=1, metavar="N", help="machines of the job (default: 1)")
    job.add_argument("--ranks", type=count_parts, default=1, metavar="N", help="ranks of each node (default: 1)")
    job.add_argument("--workers", type=count_parts, default=4, metavar="N", help="workers of each rank (default: 4)")
    job.add_argument(
        "--sample-seconds",
        type=number,
        default=0.0,
        metavar="SECONDS",
        help="a worker's time for one sample: reading, decoding, transform (default: 0, of clips measured; "
        "loader.stats() has it)",
    )
    job.add_argument("--epochs", type=count_parts, default=3, metavar="N", help="epochs to simulate (default: 3)")
    job.add_argument("--seed", type=seed, default=17, metavar="N", help="seed of the order (default: 17)")
    nodes = parser.add_argument_group("cache and link of each node")
    nodes.add_argument("--cache-bytes", type=size, required=True, metavar="SIZE", help="limit of its cache")
    nodes.add_argument("--link", type=rate, metavar="RATE", help="what the store can send it (default: measured)")
    nodes.add_argument(
        "--first-byte",
        type=number,
        metavar="SECONDS",
        help="from a request to its first byte (default: measured; with --link 0.03)",
    )
    nodes.add_argument(
        "--fetch-processes",
        type=partial(parse_whole, least=0, most=MAX_PARTS),
        default=0,
        metavar="N",
        help="processes of its engine that fetch (default: 0, its loop fetches itself, as on machines below four "
        "cores)",
    )
    nodes.add_argument("--no-search", action="store_true", help="leave out the smallest of both: much faster")
    prices = parser.add_argument_group("prices of the store")
    prices.add_argument(
        "--price-per-gb", type=number, default=0.0, metavar="USD", help="for 10^9 bytes that leave it (default: 0)"
    )
    prices.add_argument(
        "--price-per-million-gets",
        type=number,
        default=0.4,
        metavar="USD",
        help="for 10^6 requests (default: 0.4, as S3 standard has it)",
    )
    add_figures(parser, "waiting over cache and link")
    add_cache_dir(parser.add_argument_group("machine"))


@dataclass(frozen=True, kw_only=True)
class _Figures:
    """The inputs and results of a plan.

    Attributes:
        data: the selected samples, with their joins.
        setting: the job and its machines.
        prices: prices of the store.
        plan: result of the simulation.
        limits: result of the search; None with --no-search.
        decoding: measurement of decoding; None if it was not measured.
    """

    data: OpenedDataset
    setting: Setting
    prices: Prices
    plan: Plan
    limits: SearchResult | None
    decoding: Decoding | None

    def plain(self) -> dict[str, object]:
        """Returns all figures as plain values by name, for JSON."""
        return {
            "dataset": self.data.digest,
            "setting": asdict(self.setting),
            "prices": asdict(self.prices),
            "decoding": None if self.decoding is None else msgspec.to_builtins(self.decoding),
            "plan": asdict(self.plan),
            "limits": None if self.limits is None else asdict(self.limits),
        }


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Simulates the job and shows the figures.

    Raises:
        ConfigError: an option is invalid.
        CacheFullError: the open chunks do not fit into the cache.
        StreamerError: the dataset cannot be indexed or read.
    """
    from streamer.cli.dataset import client_settings, open_manifest, open_samples
    from streamer.client.engine_client import EngineClient
    from streamer.tools.planning.model import EngineCost, Prices, Setting
    from streamer.tools.planning.search import limits
    from streamer.tools.planning.simulate import simulate

    check_places(arguments.plot, arguments.json_file)
    if arguments.plot is not None and arguments.no_search:
        raise ConfigError("--plot shows what --no-search leaves out", field="plot")
    with EngineClient(client_settings(arguments)) as client:
        manifest = open_manifest(client, arguments, terminal)
        data = open_samples(arguments, manifest)
        decoding = None if arguments.sample_seconds else _measure_clips(manifest, client, terminal)
    setting = Setting(
        job=_job(arguments, decoding),
        link=_link(manifest, arguments, terminal),
        engine=EngineCost(fetch_processes=arguments.fetch_processes),
        cache_bytes=arguments.cache_bytes,
    )
    prices = Prices(per_gb=arguments.price_per_gb, per_million_gets=arguments.price_per_million_gets)
    plan = simulate(data, setting)
    found = None
    if not arguments.no_search:
        with terminal.progress("searching", "simulations") as bar:
            found = limits(data, setting, bar.update)
    figures = _Figures(data=data, setting=setting, prices=prices, plan=plan, limits=found, decoding=decoding)
    if not arguments.json:
        for line in _assumptions(figures):
            terminal.line(line)
        terminal.line()
        terminal.table(_HEADERS + _JOINED * bool(figures.data.joins), _rows(figures))
        terminal.line()
        for line in _conclusions(figures):
            terminal.line(line)
    write_figures(arguments, terminal, figures.plain(), partial(_save_plot, figures))
    return Exit.DONE


def _measure_clips(manifest: Manifest, client: EngineClient, terminal: Terminal) -> Decoding | None:
    """Measures the decoding of clips; returns None if the samples are no clips, or PyAV is not installed."""
    from streamer.loader.members.single_reads import StreamedBytes
    from streamer.tools.planning.decoding import measure_decode

    try:
        return measure_decode(manifest, StreamedBytes(client, manifest))
    except ConfigError as error:
        terminal.note(f"decoding is not measured: {error}")
        return None


def _job(arguments: argparse.Namespace, decoding: Decoding | None) -> TrainingJob:
    """Returns the job of the options; a measurement of decoding takes the place of --sample-seconds."""
    from streamer.tools.planning.model import TrainingJob

    return TrainingJob(
        nodes=arguments.nodes,
        ranks_per_node=arguments.ranks,
        batch_size=arguments.batch_size,
        step_seconds=arguments.step_seconds,
        workers=arguments.workers,
        sample_seconds=decoding.seconds if decoding else arguments.sample_seconds,
        epochs=arguments.epochs,
        seed=arguments.seed,
        shuffle=not arguments.no_shuffle,
    )


def _link(manifest: Manifest, arguments: argparse.Namespace, terminal: Terminal) -> Link:
    """Returns the link that the options name, or measures it from this machine."""
    import uvloop

    from streamer.tools.planning.model import Link

    if arguments.link is None:
        terminal.note(f"measuring the link for {2 * _MEASURED_SECONDS:g} s; --link says it instead")
        return uvloop.run(_measure_link(manifest, arguments))
    given = Link(bytes_per_second=arguments.link)
    return given if arguments.first_byte is None else replace(given, first_byte_seconds=arguments.first_byte)


async def _measure_link(manifest: Manifest, arguments: argparse.Namespace) -> Link:
    """Measures the link by the first 1,000 objects of the dataset; --first-byte replaces the measured latency.

    Raises:
        ConfigError: none of these objects has a byte.
        StoreError: the store refuses.
    """
    from streamer.store import open_store
    from streamer.tools.link_meter import measure_link
    from streamer.tools.planning.model import Link

    objects = [record for number in range(min(manifest.objects, 1000)) if (record := manifest.object(number)).size]
    if not objects:
        raise ConfigError("no object of the dataset has a byte to measure the link with; --link says it", field="link")
    store = open_store(objects[0].url, arguments.storage_options)
    try:
        test = await measure_link(store, objects, _MEASURED_SECONDS)
    finally:
        await store.aclose()
    first_byte = test.latency.median_seconds if arguments.first_byte is None else arguments.first_byte
    return Link(
        bytes_per_second=max(test.many.bytes_per_second, 1.0),
        first_byte_seconds=first_byte,
        connection_bytes_per_second=max(test.one.bytes_per_second, 1.0),
    )


def _rows(figures: _Figures) -> list[tuple[str, ...]]:
    """Returns a row of the table for each epoch."""
    return [
        (
            "1, cold" if number == 1 else str(number),
            format_bytes(epoch.fetched_bytes),
            f"{epoch.requests:,}",
            f"{epoch.price(figures.prices):.2f}",
            f"{epoch.hit_share:.1%}",
            f"{epoch.seconds:,.1f}",
            f"{epoch.waiting_share:.1%}",
            *_format_joins(epoch),
        )
        for number, epoch in enumerate(figures.plan.epochs, 1)
    ]


def _format_joins(epoch: EpochPlan) -> tuple[str, ...]:
    """Returns cells about what an epoch fetches of joined datasets: bytes and requests; none without joins."""
    if not epoch.of_joins:
        return ()
    sizes, requests = zip(*epoch.of_joins, strict=True)
    return format_bytes(sum(sizes)), f"{sum(requests):,}"


def _assumptions(figures: _Figures) -> Iterator[str]:
    """Yields lines about the data, the job, and the figures that are assumed or measured."""
    data = figures.data
    setting = figures.setting
    job = figures.setting.job
    world = job.nodes * job.ranks_per_node
    link = setting.link
    yield (
        f"{counted(data.samples, 'samples')} in {counted(int((data.chunk_samples > 0).sum()), 'chunks')}, "
        f"{format_bytes(data.manifest.total_bytes)}; {counted(world, 'ranks')} on {counted(job.nodes, 'nodes')}, "
        f"{job.batch_size * world:,} samples and {job.step_seconds:g} s a step"
    )
    yield (
        f"each node: a cache of {format_bytes(setting.cache_bytes)}, a link of "
        f"{format_bytes(link.bytes_per_second)}/s, {link.first_byte_seconds * 1e3:.0f} ms to the first byte"
    )
    for join in data.joins:
        from streamer.batches.samples.join_cost import describe_join

        yield describe_join(join, data, setting.cache_bytes)
    cold = figures.plan.epochs[0]
    processes = setting.engine.fetch_processes
    carried = cold.fetched_bytes / setting.engine.seconds(cold.fetched_bytes, cold.requests)
    if carried < link.bytes_per_second:
        yield (
            f"each node's engine carries {format_bytes(carried)}/s of this data with fetch_processes = {processes}, "
            "less than its link; --fetch-processes plans with others"
        )
    if (decoding := figures.decoding) is not None:
        yield f"decoding: {decoding.cost}"
        batch_seconds = job.batch_size * decoding.seconds
        yield (
            f"  {decoding.seconds * 1e3:.3g} ms of CPU a sample at full size, measured here: "
            f"{_describe_workers(batch_seconds, job.step_seconds)}; a batch has "
            f"{format_bytes(decoding.nbytes * job.batch_size)}"
        )
        if decoding.cost.cheaper:
            yield f"  cheaper: {decoding.cost.cheaper}"
    elif not job.sample_seconds:
        yield "reading and decoding are taken to be free; --sample-seconds counts them"


def _describe_workers(batch_seconds: float, step_seconds: float) -> str:
    """Says how many workers of a rank decode a batch (`batch_seconds` of CPU) in a step; no number does in 0 s."""
    if not step_seconds:
        return f"{batch_seconds:.3g} s of CPU a batch, which no number of workers decodes in --step-seconds 0"
    return (
        f"{counted(math.ceil(batch_seconds / step_seconds), 'workers')} of each rank for a batch in {step_seconds:g} s"
    )


def _conclusions(figures: _Figures) -> Iterator[str]:
    """Yields lines about the first batch, and about the cache and the link with which the job does not wait."""
    from streamer.tools.planning.model import WAITING_BOUND

    yield f"first batch after {figures.plan.first_batch_seconds:.1f} s"
    if figures.limits is None:
        return
    cache = figures.limits.cache_bytes
    link = figures.limits.link_bytes_per_second
    if cache.least is None and link.least is None:
        yield "neither a larger cache nor a faster link ends the waiting: the workers are too few or too slow"
        return
    bound = f"at most {WAITING_BOUND:.0%} waiting after the first epoch"
    yield f"{bound}: a cache of {_bytes(cache)} on each node with this link"
    yield f"{bound}: a link of {_bytes(link, '/s')} to each node with this cache"


def _bytes(needed: SmallestNeeds, unit: str = "") -> str:
    return "no size" if needed.least is None else format_bytes(needed.least) + unit


def _save_plot(figures: _Figures, path: Path) -> None:
    """Saves a plot of the waiting over the size of the cache, and over the rate of the link."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from streamer.tools.planning.model import WAITING_BOUND

    limits = figures.limits
    setting = figures.setting
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
