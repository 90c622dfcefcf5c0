"""Reports the measurements of a link, for `streamer bench`: rows of tables, advice, and a plot.

`bench_command.py` uses it. Only `save_plot` writes, the file of the plot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from streamer.config import FetchConfig, MiB, counted, format_bytes
from streamer.engine.processes.policy import count_max_processes
from streamer.tools.link_meter import Cell, Latency, Way

# Combinations that reach this share of the largest rate are taken to be as fast.
_WORTH = 0.92
# The rate of one core with all that the engine does around fetching, for chunks of 2 MB over TLS; without TLS
# 1.04 GB/s (two cores, 2026-11-24).
_LOOP_BYTES_PER_SECOND = 0.82e9
# Price of a GET request: S3 standard, us-east-1, 2025, takes 0.0004 USD for 1,000.
_GET_PRICE_USD = 0.4e-6

CELL_HEADERS = ("connections x range", "MB/s", "CPU s/GB", "requests", "failed")


@dataclass(frozen=True, kw_only=True)
class LinkFigures:
    """All measurements of one url.

    Attributes:
        url: the url.
        latency: time to the first byte.
        single: measurement with one connection.
        grid: combinations of connections and ranges with the client that "auto" chooses here.
        clients: the chosen combination (`best`) with each client; empty if clients are not compared.
        ways: the chosen combination over http and https; empty if only one endpoint was named, or the other one failed.
    """

    url: str
    latency: Latency
    single: Cell
    grid: tuple[Cell, ...]
    clients: tuple[Cell, ...]
    ways: tuple[Way, ...] = ()


def cell_row(cell: Cell) -> tuple[str, ...]:
    """Returns the row of a table for one measurement; its headers are `CELL_HEADERS`."""
    return (
        f"{cell.connections} x {_size(cell.range_bytes)}",
        f"{cell.bytes_per_second / 1e6:,.0f}",
        f"{cell.cpu_seconds_per_gb:.2f}" if cell.received_bytes else "-",
        f"{cell.requests:,}",
        f"{len(cell.errors):,}",
    )


def best(cells: Sequence[Cell]) -> Cell:
    """Returns the cheapest of the combinations that are about as fast as the fastest.

    It has the fewest connections, because the rest of the machine uses the link as well. Of several such ones it has
    the longest ranges, because requests cost.
    """
    fastest = max(cell.bytes_per_second for cell in cells)
    good = [cell for cell in cells if cell.bytes_per_second >= _WORTH * fastest]
    return min(good, key=lambda cell: (cell.connections, -cell.range_bytes))


def advice(figures: LinkFigures, cores: int) -> list[str]:
    """Returns lines of advice for an engine on so many cores, from all measurements of a link."""
    chosen = best(figures.grid)
    single = figures.single
    rate = chosen.bytes_per_second
    requests = 1e12 / chosen.range_bytes
    if not rate:  # a store without progress, or less time than one range takes
        return ["nothing arrived in the time given: measure longer (--seconds)", *_faults(figures.grid)]
    lines = [
        f"{format_bytes(rate)}/s with {chosen.connections} connections and ranges of {_size(chosen.range_bytes)}; "
        f"one connection alone has {format_bytes(single.bytes_per_second)}/s",
        f"1 TB takes {1e12 / rate / 60:,.0f} min, {requests:,.0f} requests ({requests * _GET_PRICE_USD:.2f} USD on S3) "
        f"and {chosen.cpu_seconds_per_gb * 1000:,.0f} CPU s",
    ]
    lines += _settings(chosen, figures.grid)
    lines += _loop(rate, cores)
    lines += _faults(figures.grid)
    lines += _clients(figures.clients, figures.single.client)
    lines += _tls(figures.ways)
    return lines


def save_plot(figures: LinkFigures, path: Path) -> None:
    """Saves a plot of rate and CPU cost over the number of connections, with a curve for each length of ranges.

    Raises:
        OSError: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    rates, costs = figure.subplots(1, 2)
    for range_bytes in sorted({cell.range_bytes for cell in figures.grid}):
        cells = sorted((c for c in figures.grid if c.range_bytes == range_bytes), key=lambda cell: cell.connections)
        connections = [cell.connections for cell in cells]
        label = _size(range_bytes)
        rates.plot(connections, [cell.bytes_per_second / 1e6 for cell in cells], marker="o", label=label)
        costs.plot(connections, [cell.cpu_seconds_per_gb for cell in cells], marker="o", label=label)
    ticks = sorted({cell.connections for cell in figures.grid})
    for axes, title in ((rates, "MB/s"), (costs, "CPU s/GB")):
        axes.set(xscale="log", xlabel="requests in flight", ylabel=title, ylim=(0, None))
        axes.set_xticks(ticks, [str(count) for count in ticks])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    rates.legend(title="range")
    figure.suptitle(f"{figures.url}: first byte {figures.latency.median_seconds * 1e3:.0f} ms")
    figure.savefig(path, dpi=120)


def _settings(chosen: Cell, grid: Sequence[Cell]) -> list[str]:
    """Returns a line that says to keep the defaults of the engine, or which settings use the link better."""
    default = FetchConfig()
    usual = [cell for cell in grid if default.range_bytes / 2 <= cell.range_bytes <= 2 * default.range_bytes]
    changes = []
    if chosen.connections > default.window_max:
        changes.append(f"window_max = {chosen.connections}")
    if usual and chosen not in usual:
        changes.append(f"range_bytes = {chosen.range_bytes}")
    if not changes:
        return [
            "leave the engine as it is: it starts with "
            f"{default.window_start} connections, goes to {default.window_max} by itself, and asks for "
            f"{_size(default.range_bytes)}"
        ]
    return [f"for `streamer serve --config engine.toml`: [fetch] {', '.join(changes)}"]


def _loop(rate: float, cores: int) -> list[str]:
    """Returns a line about fetch processes if the engine's loop alone cannot carry the link's rate; else none."""
    if rate <= _LOOP_BYTES_PER_SECOND:
        return []
    needed = math.ceil(rate / _LOOP_BYTES_PER_SECOND)
    max_processes = count_max_processes(cores)
    text = (
        f"one core of the engine carries about {format_bytes(_LOOP_BYTES_PER_SECOND)}/s with TLS, less than this link: "
        f"{needed} fetch processes use it"
    )
    if max_processes >= needed:
        return [f'{text}; fetch_processes = "auto" starts them by itself']
    return [
        f'{text}; "auto" starts at most {max_processes} on {counted(cores, "cores")}: fetch_processes = {needed} '
        "for all of it"
    ]


def _faults(grid: Sequence[Cell]) -> list[str]:
    """Returns a line about the requests that failed; none if none did."""
    failed = [name for cell in grid for name in cell.errors]
    if not failed:
        return []
    names = ", ".join(f"{failed.count(name)} {name}" for name in sorted(set(failed)))
    return [
        f"{len(failed)} of {sum(cell.requests for cell in grid):,} requests failed: {names}; the engine retries them"
    ]


def _clients(clients: Sequence[Cell], auto: str) -> list[str]:
    """Returns a line about the client that reads the link best; none with fewer than two clients.

    It is the one with the least CPU time among those that are about as fast as the fastest. `auto` is the name of the
    client that the engine chooses.
    """
    served = [cell for cell in clients if cell.received_bytes]
    if len(served) < 2:
        return []
    fastest = max(cell.bytes_per_second for cell in served)
    good = [cell for cell in served if cell.bytes_per_second >= _WORTH * fastest]
    chosen = min(good, key=lambda cell: cell.cpu_seconds_per_gb)
    others = ", ".join(
        f"{cell.client} has {cell.bytes_per_second / chosen.bytes_per_second:.2f} x its rate at "
        f"{cell.cpu_seconds_per_gb / max(chosen.cpu_seconds_per_gb, 1e-9):.2f} x its CPU per byte"
        for cell in served
        if cell is not chosen
    )
    return [f'{chosen.client} reads this link best: {others}; "auto", as the engine reads, takes {auto} here']


def _tls(ways: Sequence[Way]) -> list[str]:
    """Returns a line about what TLS costs; none unless both http and https were measured."""
    by_scheme = {way.scheme: way for way in ways if way.cell.received_bytes}
    if not {"http", "https"} <= set(by_scheme):
        return []
    plain = by_scheme["http"]
    secret = by_scheme["https"]
    added = secret.cell.cpu_seconds_per_gb - plain.cell.cpu_seconds_per_gb
    return [
        f"TLS adds {added:.2f} CPU s/GB ({secret.cell.cpu_seconds_per_gb:.2f} against "
        f"{plain.cell.cpu_seconds_per_gb:.2f}) and {_setup_ms(secret) - _setup_ms(plain):.1f} ms to a new connection; "
        f"{secret.cell.bytes_per_second / plain.cell.bytes_per_second:.2f} x the rate"
    ]


def _setup_ms(way: Way) -> float:
    """Returns the milliseconds that a new connection takes before its first request."""
    return max(0.0, way.latency.first_seconds - way.latency.median_seconds) * 1e3


def _size(count: int) -> str:
    return f"{count / MiB:g} MiB" if count >= MiB else f"{count // 1024} KiB"
