"""`streamer bench`: measurements of local files, and the advice that follows from given figures."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from streamer.cli.main import main
from streamer.cli.terminal import Terminal
from streamer.config import FetchConfig, MiB
from streamer.errors import AccessDeniedError, ConfigError, ThrottledError
from streamer.manifest.model import ObjectRecord
from streamer.store import Client, open_store
from streamer.store.base import Get, Take
from streamer.store.local_store import LocalStore
from streamer.store.root import StoreRoot
from streamer.tools.bench_command import _Bench, add_arguments, client_of, endpoint_of, move_to_endpoint
from streamer.tools.link_meter import Cell, Latency, Way, combine_cells, find_objects, measure_cell, ranges
from streamer.tools.link_report import LinkFigures, advice, best, cell_row, save_plot


def _cell(connections: int, range_bytes: int, rate: float, client: str = "obstore", cpu: float = 1.0) -> Cell:
    return Cell(
        client=client,
        connections=connections,
        range_bytes=range_bytes,
        received_bytes=int(rate),
        seconds=1.0,
        cpu_seconds=cpu,
        requests=10,
    )


def _figures(*grid: Cell, clients: tuple[Cell, ...] = ()) -> LinkFigures:
    latency = Latency(requests=20, first_seconds=0.1, median_seconds=0.03, p95_seconds=0.08, max_seconds=0.1)
    return LinkFigures(url="s3://b/", latency=latency, single=_cell(1, 8 * MiB, 85e6), grid=grid, clients=clients)


def test_ranges_cover_all_objects_before_they_come_again() -> None:
    """Ranges cover all objects before any comes again, and the last one of an object is shorter."""
    objects = [ObjectRecord("a", 5, ""), ObjectRecord("b", 2, "")]
    walk = ranges(objects, 2)
    found = [next(walk) for _ in range(5)]
    assert [(target.url, start, stop) for target, start, stop in found] == [
        ("a", 0, 2),
        ("a", 2, 4),
        ("a", 4, 5),
        ("b", 0, 2),
        ("a", 0, 2),
    ]


async def test_what_arrives_in_the_time_is_counted(tmp_path: Path) -> None:
    """A measurement counts the bytes that arrive in its time, from several requests at once."""
    (tmp_path / "a.bin").write_bytes(bytes(100_000))
    (tmp_path / "empty").write_bytes(b"")
    store = LocalStore()
    objects = await find_objects(store, f"{tmp_path}/")
    cell = await measure_cell(store, ranges(objects, 10_000), ("file", 4, 10_000), 0.05)
    assert [record.size for record in objects] == [100_000]
    assert cell.received_bytes > 10_000
    assert cell.received_bytes <= cell.requests * 10_000
    assert cell.seconds >= 0.05


async def test_nothing_to_read_is_said(tmp_path: Path) -> None:
    """A url with only empty files raises ConfigError."""
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(ConfigError, match="no object with a byte"):
        await find_objects(LocalStore(), f"{tmp_path}/")


class _Refusing(LocalStore):
    """Stands for a store that answers every request with one error; it lists like a local one."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    async def get(self, asked: Get, take: Take) -> None:
        raise self.error


async def test_a_store_that_refuses_access_ends_the_measurement() -> None:
    """A store that refuses access ends the measurement with its own error."""
    walk = ranges([ObjectRecord("a", 5, "")], 2)
    with pytest.raises(AccessDeniedError):
        await measure_cell(_Refusing(AccessDeniedError("no")), walk, ("obstore", 3, 2), 5.0)


async def test_a_store_that_throttles_is_counted_and_not_asked_for_ever() -> None:
    """A store that throttles every request ends the measurement with its error after a hundred refusals."""
    walk = ranges([ObjectRecord("a", 5, "")], 2)
    with pytest.raises(ThrottledError):
        await measure_cell(_Refusing(ThrottledError("slow down")), walk, ("obstore", 3, 2), 5.0)


def _bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> _Bench:
    """Makes the command on a file, which "obstore" refuses to read."""
    (tmp_path / "a.bin").write_bytes(bytes(200_000))
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    line = [f"{tmp_path}/a.bin", "--seconds", "0.02", "--connections", "2", "4", "--ranges", "64KiB", *options]
    bench = _Bench(parser.parse_args(line), Terminal())

    def opened(root: StoreRoot, client: str) -> tuple[LocalStore, str]:
        return (_Refusing(AccessDeniedError("no")) if client == "obstore" else LocalStore()), client

    monkeypatch.setattr(bench, "_open", opened)
    return bench


async def test_a_client_that_fails_does_not_cost_the_results_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A client that fails is left out of the comparison with its reason."""
    bench = _bench(tmp_path, monkeypatch)
    objects = await find_objects(LocalStore(), f"{tmp_path}/")
    found = await bench._compare(objects, _cell(2, 1 << 16, 1e6))
    assert [cell.client for cell in found] == ["curl", "fsspec"]
    assert "obstore is left out: no" in capsys.readouterr().err


async def test_combinations_that_fail_do_not_cost_those_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Combinations that fail are left out with their reason; where none was measured, the error is raised."""
    bench, store = _bench(tmp_path, monkeypatch), LocalStore()
    objects = await find_objects(store, f"{tmp_path}/")
    measured = bench._cell

    async def fails_with_four(store: LocalStore, objects: list[ObjectRecord], shape: tuple[str, int, int]) -> Cell:
        return await measured(_Refusing(ThrottledError("slow down")) if shape[1] == 4 else store, objects, shape)

    monkeypatch.setattr(bench, "_cell", fails_with_four)
    with Terminal().progress("measuring", "combinations") as bar:
        found = await bench._grid(store, objects, "curl", bar)
        assert [cell.connections for cell in found] == [2]
        assert "1 combinations are left out: slow down" in capsys.readouterr().err
        with pytest.raises(ThrottledError):
            await bench._grid(_Refusing(ThrottledError("slow down")), objects, "curl", bar)


def test_the_best_is_the_cheapest_of_the_fast_ones() -> None:
    """The best combination is within 8 % of the fastest, with the fewest connections and then the longest ranges."""
    grid = (_cell(4, MiB, 300e6), _cell(16, MiB, 950e6), _cell(16, 8 * MiB, 940e6), _cell(64, 8 * MiB, 1000e6))
    assert best(grid) == grid[2]


def test_the_advice_is_to_change_nothing_where_the_defaults_do() -> None:
    """The advice is to change nothing where the defaults suffice, and names the price of a terabyte."""
    lines = advice(_figures(_cell(16, 8 * MiB, 1e9)), 8)
    assert lines[0] == "1.0 GB/s with 16 connections and ranges of 8 MiB; one connection alone has 85.0 MB/s"
    assert lines[1] == "1 TB takes 17 min, 119,209 requests (0.05 USD on S3) and 1,000 CPU s"
    assert lines[2].startswith("leave the engine as it is")


def test_the_advice_names_the_settings_that_differ() -> None:
    """The advice names more connections or other ranges than the engine's own where they were measured as better."""
    many = FetchConfig().window_max * 2
    grid = (_cell(4, 8 * MiB, 1e8), _cell(many, 32 * MiB, 1e9))
    assert advice(_figures(*grid), 8)[2] == (
        f"for `streamer serve --config engine.toml`: [fetch] window_max = {many}, range_bytes = {32 * MiB}"
    )
    assert "leave the engine" in advice(_figures(_cell(4, MiB, 1e8)), 8)[2]


def test_a_link_that_gave_nothing_is_not_divided_by() -> None:
    """The advice for a link on which nothing arrived is to measure longer."""
    assert advice(_figures(_cell(4, MiB, 0)), 8) == ["nothing arrived in the time given: measure longer (--seconds)"]


def test_clients_are_compared_where_both_received() -> None:
    """Clients are compared by ratios of rate and CPU; one that received nothing is left out."""
    fast, slow, dead = (_cell(4, MiB, 4e8), _cell(4, MiB, 1e8, "fsspec", 2.0), _cell(4, MiB, 0, "fsspec"))
    compared = advice(_figures(_cell(4, MiB, 1e8), clients=(fast, slow)), 8)
    assert compared[-1] == (
        "obstore reads this link best: fsspec has 0.25 x its rate at 8.00 x its CPU per byte; "
        '"auto", as the engine reads, takes obstore here'
    )
    assert not any("fsspec" in line for line in advice(_figures(_cell(4, MiB, 1e8), clients=(fast, dead)), 8))
    assert cell_row(dead)[2] == "-"


def test_the_cheapest_of_the_fast_clients_is_named() -> None:
    """The best client is the cheapest of those within 8 % of the fastest, and the advice tells what "auto" takes."""
    obstore = _cell(4, MiB, 4e8)
    near, far = _cell(4, MiB, 3.7e8, "curl", 0.5), _cell(4, MiB, 2e8, "curl", 0.25)
    (line,) = advice(_figures(_cell(4, MiB, 1e8), clients=(near, obstore)), 8)[3:]
    assert line.startswith("curl reads this link best: obstore has 1.08 x its rate at 1.85 x its CPU per byte;")
    assert line.endswith("takes obstore here")
    (line,) = advice(_figures(_cell(4, MiB, 1e8), clients=(far, obstore)), 8)[3:]
    assert line.startswith("obstore reads this link best: curl has 0.50 x its rate")


@pytest.mark.parametrize(
    ("url", "client", "name"),
    [
        ("s3://b", "curl", "curl"),
        ("https://h", "curl", "curl"),
        ("gs://b", "curl", "obstore"),
        ("s3://b", "obstore", "obstore"),
        ("s3://b", "fsspec", "fsspec"),
        ("memory://x", "auto", "fsspec"),
        ("/tmp", "auto", "file"),
    ],
)
def test_the_client_is_named_after_what_reads(url: str, client: Client, name: str) -> None:
    """The client is named after what reads the objects: a store of libcurl is not obstore, though it lists with it."""
    assert client_of(open_store(url, client=client)) == name


@pytest.mark.slow
@pytest.mark.process  # matplotlib lists the fonts when it is used for the first time on a machine
def test_the_plot_is_a_file(tmp_path: Path) -> None:
    """`save_plot` writes a PNG file."""
    pytest.importorskip("matplotlib")
    save_plot(_figures(_cell(4, MiB, 1e8), _cell(16, MiB, 2e8)), tmp_path / "link.png")
    assert (tmp_path / "link.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.leaves_over("libuv opens one pipe for signals per process and keeps it")
def test_the_command_measures_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`bench` measures files and writes every figure as JSON; one client alone is not compared."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.bin").write_bytes(bytes(200_000))
    line = ["bench", f"{tmp_path}/data/", "--seconds", "0.02", "--connections", "2", "4", "--ranges", "64KiB"]
    assert main([*line, "--json-file", f"{tmp_path}/link.json"]) == 0
    out, err = capsys.readouterr()
    figures = json.loads((tmp_path / "link.json").read_text())
    assert [cell["connections"] for cell in figures["grid"]] == [2, 4]
    assert out.startswith("first byte: median ")
    assert "2 x 64 KiB" in out
    assert figures["clients"] == []
    assert "measuring: 2 of 2 combinations" in err


@pytest.mark.process  # as above
@pytest.mark.leaves_over("libuv opens one pipe for signals per process and keeps it")
@pytest.mark.parametrize(
    ("option", "file", "message"),
    [
        ("--plot", "link.png", "--plot needs matplotlib in this environment"),
        ("--plot", "link.nonsense", "--plot link.nonsense: matplotlib does not write .nonsense"),
        ("--plot", "nowhere/link.png", "--plot nowhere/link.png: there is no folder nowhere"),
        ("--json-file", "nowhere/link.json", "--json-file nowhere/link.json: there is no folder nowhere"),
    ],
)
def test_what_cannot_be_written_is_said_before_anything_is_measured(
    option: str,
    file: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A plot or file that cannot be written is refused before the measurement, which takes minutes and money.
    (Its curves were lost for a missing library.)"""
    monkeypatch.chdir(tmp_path)
    if "matplotlib in" in message:
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    (tmp_path / "a.bin").write_bytes(bytes(1000))
    assert main(["bench", f"{tmp_path}/", option, file]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "measuring" not in err


def test_the_bytes_are_bounded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--max-bytes` leaves combinations out and tells how many."""
    (tmp_path / "a.bin").write_bytes(bytes(200_000))
    line = ["bench", f"{tmp_path}/", "--seconds", "0.02", "--connections", "2", "4", "--max-bytes", "1"]
    assert main(line) == 0
    assert "--max-bytes: 3 combinations are left out" in capsys.readouterr().err


def _way(scheme: str, first: float, cpu: float) -> Way:
    latency = Latency(requests=20, first_seconds=first, median_seconds=0.03, p95_seconds=0.08, max_seconds=0.1)
    return Way(scheme=scheme, latency=latency, cell=_cell(16, 8 * MiB, 1e9, cpu=cpu))


def test_tls_is_recognised() -> None:
    """The advice compares CPU and connection time with and without TLS if both endpoints were measured."""
    figures = _figures(_cell(16, 8 * MiB, 1e9))
    ways = (_way("https", 0.05, 0.7), _way("http", 0.04, 0.4))
    for found in (ways, ways[::-1]):
        (line,) = [line for line in advice(replace(figures, ways=found), 8) if line.startswith("TLS")]
        assert "adds 0.30 CPU s/GB (0.70 against 0.40) and 10.0 ms to a new connection; 1.00 x the rate" in line
    assert not any(line.startswith("TLS") for line in advice(replace(figures, ways=ways[:1]), 8))


def test_goes_of_one_combination_add_up() -> None:
    """Bytes, seconds, CPU and requests of one combination's measurements are added."""
    whole = combine_cells([_cell(16, MiB, 1e9), _cell(16, MiB, 3e9, cpu=2.0)])
    assert (whole.bytes_per_second, whole.cpu_seconds, whole.requests) == (2e9, 3.0, 20)


def test_the_other_endpoint() -> None:
    """The other endpoint of a web url changes the url, and that of a bucket its options."""
    options = {"endpoint_url": "https://minio:9000", "key": "k"}
    bucket = StoreRoot.resolve("s3://b/x/", options)
    assert endpoint_of(bucket) == "https://minio:9000"
    nested = StoreRoot.resolve("s3://b/x/", {"client_kwargs": {"endpoint_url": "https://minio:9000"}})
    assert endpoint_of(nested) == "https://minio:9000"
    for root in (bucket, nested):
        moved = move_to_endpoint(root, "http://minio:9001")
        assert (moved.url, endpoint_of(moved)) == ("s3://b", "http://minio:9001")
    web = StoreRoot.resolve("https://host/a.tar", {"headers": {"A": "b"}})
    assert endpoint_of(web) == "https://host"
    assert move_to_endpoint(web, "http://host:81/").url == "http://host:81"
    assert move_to_endpoint(web, "http://host:81/").options == web.options
    with pytest.raises(ConfigError, match="endpoint_url"):
        endpoint_of(StoreRoot.resolve("s3://b/x/"))
    with pytest.raises(ConfigError, match="write http"):
        move_to_endpoint(bucket, "minio:9001")


@pytest.mark.parametrize(
    ("rate", "cores", "said"),
    [
        (0.8e9, 2, None),
        (1.5e9, 8, '2 fetch processes use it; fetch_processes = "auto" starts them by itself'),
        (1.5e9, 2, '2 fetch processes use it; "auto" starts at most 0 on 2 cores: fetch_processes = 2 for all of it'),
        (5e9, 16, '7 fetch processes use it; "auto" starts at most 4 on 16 cores: fetch_processes = 7 for all of it'),
    ],
)
def test_a_link_that_is_faster_than_the_loop_needs_fetch_processes(rate: float, cores: int, said: str | None) -> None:
    """A link faster than the loop gets advice how many fetch processes it needs, and whether they come unasked."""
    found = [line for line in advice(_figures(_cell(64, 8 * MiB, rate)), cores) if "fetch process" in line]
    assert found == (
        []
        if said is None
        else [f"one core of the engine carries about 820.0 MB/s with TLS, less than this link: {said}"]
    )
