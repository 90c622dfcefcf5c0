"""Implements `streamer bench`, which measures the link to a store. `cli/main.py` runs it.

A *combination* is a number of connections and a length of ranges. `link_meter.py` measures, `link_report.py` reports.
"""

from __future__ import annotations

import argparse
from contextlib import AsyncExitStack
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from streamer.base.cgroup import usable_cores
from streamer.cli.exit_codes import Exit
from streamer.cli.options import (
    add_figures,
    add_storage_options,
    check_places,
    count_parts,
    positive_number,
    positive_size,
    size,
)
from streamer.cli.terminal import ProgressLine, Terminal, write_figures
from streamer.config import MiB
from streamer.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamer.manifest.model import ObjectRecord
    from streamer.store import ObjectStore, StoreRoot
    from streamer.tools.link_meter import Cell, Way
    from streamer.tools.link_report import LinkFigures

HELP = "measure the link to a store"

DESCRIPTION = """\
Reads ranges of the objects below a url, with more and more connections, and throws the bytes away: latency, rate of one
connection and of many, CPU per GB, and the clients that the url has (curl, obstore, fsspec) side by side. The reading
is real, and so are its requests and, across regions, its price.
"""

EXAMPLES = """\
examples:
  streamer bench s3://bucket/train/
  streamer bench s3://bucket/train/ --connections 16 64 --ranges 8MiB
  # what TLS costs
  streamer bench s3://bucket/train/ --storage-options @minio.json \\
    --other-endpoint http://minio:9001
  # for programs, and as an image
  streamer bench https://host/a.tar --json | jq .latency
  streamer bench https://host/a.tar --plot link.png --json-file link.json
"""

NOTES = """\
How many accelerators a machine can feed is measured by python -m benchmarks.feed in a clone of the repository.
"""

# Requests by which the time to the first byte is measured.
_LATENCY_REQUESTS = 20
# Clients are compared only if one of these reads the url; fsspec can then read it, too.
_NATIVE = ("curl", "obstore")
# Turns over the two endpoints, of --seconds each: one after the other would also measure what else changed on the
# machine.
_TURNS = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    data = parser.add_argument_group("data")
    data.add_argument("url", metavar="URL", help="a prefix or an object; a few large objects do")
    add_storage_options(data)
    measurement = parser.add_argument_group("measurement")
    measurement.add_argument(
        "--connections",
        type=count_parts,
        nargs="+",
        default=[4, 16, 64, 128],
        metavar="N",
        help="numbers of connections to compare (default: 4 16 64 128)",
    )
    measurement.add_argument(
        "--ranges",
        type=positive_size,
        nargs="+",
        default=[MiB, 8 * MiB],
        metavar="SIZE",
        help="sizes of requests to compare (default: 1MiB 8MiB)",
    )
    measurement.add_argument(
        "--seconds", type=positive_number, default=2.0, metavar="SECONDS", help="for each combination (default: 2)"
    )
    measurement.add_argument(
        "--max-bytes", type=size, default=20_000_000_000, metavar="SIZE", help="stop after so much (default: 20GB)"
    )
    measurement.add_argument(
        "--other-endpoint",
        metavar="URL",
        help="the same store over http where its endpoint is https, or the other way: shows what TLS costs",
    )
    add_figures(parser, "the rates")


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Measures the link, and shows the figures and advice.

    Raises:
        ConfigError: an option is invalid, or there is nothing to read.
        StoreError: the store refuses before the first combination is measured.
    """
    check_places(arguments.plot, arguments.json_file)
    import uvloop

    from streamer.tools.doctor.reach import access_findings
    from streamer.tools.link_report import save_plot

    bench = _Bench(arguments, terminal)
    show = terminal.note if arguments.json else terminal.line
    for finding in access_findings(bench.root):
        show(f"{finding.subject}: {finding.fact}")
    figures = uvloop.run(bench.run())
    if not arguments.json:
        _show(figures, terminal)
    write_figures(arguments, terminal, asdict(figures), partial(save_plot, figures))
    return Exit.DONE


def _show(figures: LinkFigures, terminal: Terminal) -> None:
    """Shows the latency, the tables and the advice."""
    from streamer.tools import link_report

    latency = figures.latency
    terminal.line(
        f"first byte: median {latency.median_seconds * 1e3:.1f} ms, p95 {latency.p95_seconds * 1e3:.1f} ms, "
        f"max {latency.max_seconds * 1e3:.1f} ms ({latency.requests} requests)"
    )
    terminal.line()
    terminal.table(link_report.CELL_HEADERS, [link_report.cell_row(c) for c in (figures.single, *figures.grid)])
    if figures.clients:
        terminal.line()
        terminal.table(
            ("client", *link_report.CELL_HEADERS), [(c.client, *link_report.cell_row(c)) for c in figures.clients]
        )
    if figures.ways:
        terminal.line()
        terminal.table(
            ("scheme", *link_report.CELL_HEADERS), [(w.scheme, *link_report.cell_row(w.cell)) for w in figures.ways]
        )
    terminal.line()
    for line in link_report.advice(figures, usable_cores()):
        terminal.line(line)


class _Bench:
    """Makes the measurements of one run of the command.

    Args:
        arguments: arguments of the command.
        terminal: where progress and notes go.

    Attributes:
        root: root of the url, with its storage options.
    """

    def __init__(self, arguments: argparse.Namespace, terminal: Terminal) -> None:
        from streamer.loader.options.dataset_options import absolute
        from streamer.store import StoreRoot

        self._url = absolute(arguments.url)
        self.root = StoreRoot.resolve(self._url, arguments.storage_options)
        self._arguments = arguments
        self._terminal = terminal
        self._received_bytes = 0

    async def run(self) -> LinkFigures:
        """Measures what the arguments ask for; what cannot be measured after the first combination is left out.

        Raises:
            ConfigError: there is nothing to read.
            StoreError: the store refuses before the first combination is measured.
        """
        from streamer.tools.link_meter import find_objects, measure_latency
        from streamer.tools.link_report import LinkFigures, best

        store, client = self._open(self.root, "auto")
        try:
            objects = await find_objects(store, self._url)
            latency = await measure_latency(store, objects, _LATENCY_REQUESTS)
            with self._terminal.progress("measuring", "combinations") as bar:
                single = await self._cell(store, objects, (client, 1, max(self._arguments.ranges)))
                grid = await self._grid(store, objects, client, bar)
        finally:
            await store.aclose()
        clients = await self._compare(objects, best(grid)) if client in _NATIVE else ()
        ways: Sequence[Way] = ()
        if self._arguments.other_endpoint:
            try:
                ways = await self._compare_endpoints(objects, best(grid))
            except StoreError as error:
                self._terminal.note(f"{self._arguments.other_endpoint} is left out: {error}")
        return LinkFigures(
            url=self._url, latency=latency, single=single, grid=tuple(grid), clients=tuple(clients), ways=tuple(ways)
        )

    async def _grid(
        self, store: ObjectStore, objects: Sequence[ObjectRecord], client: str, bar: ProgressLine
    ) -> list[Cell]:
        """Measures every combination until --max-bytes are received, or the store refuses after the first one."""
        shapes = [(n, length) for length in self._arguments.ranges for n in sorted(self._arguments.connections)]
        cells: list[Cell] = []
        for number, (connections, length) in enumerate(shapes, 1):
            if cells and self._received_bytes >= self._arguments.max_bytes:
                self._terminal.note(f"--max-bytes: {len(shapes) - len(cells)} combinations are left out")
                break
            try:
                cells.append(await self._cell(store, objects, (client, connections, length)))
            except StoreError as error:
                # The measurements so far were paid for, and are kept.
                if not cells:
                    raise
                self._terminal.note(f"{len(shapes) - len(cells)} combinations are left out: {error}")
                break
            bar.update(number, len(shapes))
        return cells

    async def _compare(self, objects: Sequence[ObjectRecord], chosen: Cell) -> list[Cell]:
        """Measures the chosen combination with each client that can read the url, one after the other."""
        from streamer.tools.link_meter import measure_latency

        found = []
        for name in (*_NATIVE, "fsspec"):
            try:
                store, client = self._open(self.root, name)
            except (ImportError, ConfigError, StoreError) as error:
                self._terminal.note(f"{name} is left out: {error}")
                continue
            if client != name:  # libcurl reads s3 and http alone
                continue
            try:
                # Imports, credentials and the first connection are not compared.
                await measure_latency(store, objects, 1)
                found.append(await self._cell(store, objects, (client, chosen.connections, chosen.range_bytes)))
            except (ImportError, StoreError) as error:
                self._terminal.note(f"{name} is left out: {error}")
            finally:
                await store.aclose()
        return found

    async def _compare_endpoints(self, objects: Sequence[ObjectRecord], chosen: Cell) -> list[Way]:
        """Measures the chosen combination at the url's endpoint and at --other-endpoint, in turns."""
        from msgspec.structs import replace

        from streamer.tools.link_meter import Way, combine_cells, measure_latency

        here = endpoint_of(self.root)
        shape = (chosen.client, chosen.connections, chosen.range_bytes)
        found = []
        async with AsyncExitStack() as stack:
            for endpoint in (here, self._arguments.other_endpoint):
                root = move_to_endpoint(self.root, endpoint)
                store, _ = self._open(root, chosen.client)
                stack.push_async_callback(store.aclose)
                there = [replace(record, url=record.url.replace(self.root.url, root.url, 1)) for record in objects]
                found.append((endpoint, store, there, await measure_latency(store, there, _LATENCY_REQUESTS)))
            turns = [[await self._cell(store, there, shape) for _, store, there, _ in found] for _ in range(_TURNS)]
        return [
            Way(
                scheme=endpoint.partition("://")[0],
                latency=latency,
                cell=combine_cells([turn[place] for turn in turns]),
            )
            for place, (endpoint, _, _, latency) in enumerate(found)
        ]

    async def _cell(self, store: ObjectStore, objects: Sequence[ObjectRecord], shape: tuple[str, int, int]) -> Cell:
        """Measures one combination, given as in `measure_cell`, and adds its bytes to those of --max-bytes."""
        from streamer.tools.link_meter import measure_cell, ranges

        cell = await measure_cell(store, ranges(objects, shape[2]), shape, self._arguments.seconds)
        self._received_bytes += cell.received_bytes
        return cell

    def _open(self, root: StoreRoot, client: str) -> tuple[ObjectStore, str]:
        """Opens the store of a root; returns it, and the name of the client that it has instead of "auto"."""
        from streamer.store import open_root

        store = open_root(root, client=client)  # type: ignore[arg-type]
        return store, client_of(store)


def client_of(store: ObjectStore) -> str:
    """Returns the name of the client by which a store reads: "file", "curl", "obstore" or "fsspec"."""
    # The names of classes tell, because the package of one that is not used may not be installed.
    clients = {"LocalStore": "file", "CurlStore": "curl", "ObstoreStore": "obstore"}
    return clients.get(type(store).__name__, "fsspec")


def endpoint_of(root: StoreRoot) -> str:
    """Returns the url of the endpoint that the options of a root name; of a web server, its own url.

    Raises:
        ConfigError: the options name none: the endpoint is the cloud's own.
    """
    if root.is_web:
        return root.url
    named = root.chosen.config.get("endpoint") or root.chosen.config.get("base_url")
    if not isinstance(named, str):
        raise ConfigError(
            "--other-endpoint needs endpoint_url in --storage-options, to compare with", field="other_endpoint"
        )
    return named


def move_to_endpoint(root: StoreRoot, endpoint: str) -> StoreRoot:
    """Returns a root with the same bucket and options at another endpoint; of a web server, the server `endpoint`.

    Raises:
        ConfigError: the endpoint is not a url of http or https.
    """
    from streamer.store import StoreRoot

    if not endpoint.startswith(("http://", "https://")):
        raise ConfigError(
            f"--other-endpoint {endpoint!r}: write http://host:port or https://...", field="other_endpoint"
        )
    if root.is_web:
        return StoreRoot.resolve(endpoint, root.options)
    return StoreRoot.resolve(root.prefix, {**root.options, "endpoint_url": endpoint})
