"""The curves of the page of a service, in a real browser: of a job that waits, as lines and as text."""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType

import pytest

from streamer.service.history.history import History, RankSample
from streamer.service.web import serve_http

DOCS = Path(__file__).parents[2] / "docs" / "deploy"
ADDRESS = "127.0.0.1:9470"
HOSTILE = '<img src=x onerror="document.title=1">'
WAITING = "Waiting for the engine"
TITLES = [
    *("Samples per second", "Waiting, whatever for", WAITING, "Bytes per second"),
    *("Hits and fill of the cache", "Requests in flight", "Time to first byte", "Refusals and retries per second"),
]


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pictures = _load("page_pictures")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(pictures.PROGRAM is None, reason="no browser: apt-get install chromium"),
]

# The charts as the page has them: title, number of lines with their points, rows of the first table, rows over time.
CHARTS = """[...document.querySelectorAll('#curves figure')].map(figure => {
  const texts = row => [...row.cells].map(cell => cell.textContent);
  const rows = table => table ? [...table.querySelectorAll('tbody tr')].map(texts) : [];
  const tables = figure.querySelectorAll('table');
  return {
    title: figure.querySelector('figcaption').textContent,
    label: figure.querySelector('svg.plot')?.getAttribute('aria-label') ?? '',
    points: [...figure.querySelectorAll('svg.plot path')].map(path => path.getAttribute('d').split(/[ML]/).length - 1),
    values: rows(tables[0]),
    times: rows(tables[tables.length - 1]),
  };
})"""
MARKS = "document.querySelector('#marks').textContent"
IS_SCROLLED_SIDEWAYS = "document.documentElement.scrollWidth > document.documentElement.clientWidth"


async def _charts(chromium: object) -> dict[str, dict[str, object]]:
    return {chart["title"]: chart for chart in await chromium.evaluate(CHARTS)}


async def test_a_job_that_waits_has_curves(tmp_path: Path) -> None:
    """Lines, the same as text, no error; on a phone; after a restart of the engine the old curve and a mark."""
    service = pictures.SlowService(tmp_path, 9471, job=HOSTILE)
    with service.at_work():
        async with pictures.browser() as chromium:
            await chromium.open(f"http://{service.http}/")
            await chromium.until("document.querySelectorAll('#curves path').length > 8")
            await asyncio.sleep(10)
            charts = await _charts(chromium)
            assert list(charts) == TITLES
            waiting = charts[WAITING]
            assert [row[0] for row in waiting["values"]] == ["rank 0", "rank 1"]
            # The link gives less than the ranks can read.
            assert all(float(row[2].rstrip("%")) > 10 for row in waiting["values"])
            assert min(waiting["points"]) > 3
            assert len(waiting["times"]) > 1
            assert waiting["label"].startswith("Waiting for the engine; mean: rank 0 ")
            assert [row[0] for row in charts["Bytes per second"]["values"]] == ["from the store", "from the cache"]
            assert HOSTILE in await chromium.evaluate(MARKS)
            assert await chromium.evaluate("document.title === 'streamer' && !document.querySelector('img')")
            await chromium.evaluate("document.querySelector('#whole').click()")
            await chromium.until("document.querySelector('#whole').getAttribute('aria-pressed') === 'true'")
            await asyncio.sleep(1)
            assert list(await _charts(chromium)) == TITLES
            assert chromium.errors == []
            await chromium.evaluate("console.error('an error is seen')")
            assert "an error is seen" in chromium.errors.pop()
            service.restart()
            for width in (320, 390):
                await chromium.open(f"http://{service.http}/", width=width)
                await chromium.until(f"{MARKS}.includes('the engine started again')")
                assert max((await _charts(chromium))[WAITING]["points"]) >= max(waiting["points"])
                assert not await chromium.evaluate(IS_SCROLLED_SIDEWAYS)


@asynccontextmanager
async def drawn(history: History, **window: object) -> AsyncIterator[object]:
    """The page of an engine with this history, as soon as its curves are there."""
    async with pictures.browser() as chromium, serve_http(ADDRESS, pictures.crowded, lambda: "", history):
        await chromium.open(f"http://{ADDRESS}/", **window)
        await chromium.until("document.querySelectorAll('#curves figure').length > 0")
        yield chromium


def _past(ranks: dict[tuple[str, str, str], RankSample], seconds: int = 120) -> History:
    history = History()
    now = int(time.time())
    for second in range(now - seconds, now + 1):
        history.add(second, {"samples": 100.0, "peer_bytes": 5e6, "store_bytes": 1e6}, ranks)
    return history


@pytest.mark.parametrize("width", [320, 390, 1280])
async def test_hostile_names_stay_text_in_curves(width: int) -> None:
    """Markup in the names of jobs, ranks and marks is shown, not made, and widens nothing."""
    sample = RankSample(samples=50.0, waiting=0.5, loader=0.6)
    history = _past({(HOSTILE, HOSTILE, "0" * 64): sample, ("j" * 300, "\u202e" + "r" * 300, "1" * 64): sample})
    history.marks.add(time.time() - 30, "warning", f"WARNING {HOSTILE}")
    async with drawn(history, width=width) as chromium:
        charts = await _charts(chromium)
        assert f"{HOSTILE}: {HOSTILE}" in [row[0] for row in charts[WAITING]["values"]]
        assert HOSTILE in await chromium.evaluate(MARKS)
        assert await chromium.evaluate("document.title === 'streamer' && !document.querySelector('img')")
        assert not await chromium.evaluate("document.querySelector('#curves').textContent.includes('\\u202e')")
        assert not await chromium.evaluate(IS_SCROLLED_SIDEWAYS)
        assert chromium.errors == []


async def test_of_many_ranks_eight_have_a_colour() -> None:
    """Those that wait most; the others are grey, and their values one click away. Peers have a line."""
    ranks = {
        ("train", f"rank {rank}", "0" * 64): RankSample(samples=9.0, waiting=rank / 100, loader=rank / 50)
        for rank in range(30)
    }
    async with drawn(_past(ranks)) as chromium:
        charts = await _charts(chromium)
        assert len(charts[WAITING]["points"]) == 24
        assert [row[0] for row in charts[WAITING]["values"]] == [f"rank {rank}" for rank in range(16, 24)]
        assert await chromium.evaluate("document.querySelector('#curves').textContent.includes('6 more ranks')")
        assert ["from peers", "5.0 MB/s", "5.0 MB/s", "5.0 MB/s"] in charts["Bytes per second"]["values"]
        nodes = (await chromium.call("Accessibility.getFullAXTree"))["nodes"]
        assert chromium.errors == []
    named = {(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if "role" in node}
    assert {("heading", "Curves"), ("region", "Curves"), ("table", WAITING), ("rowheader", "rank 23")} <= named
    assert any(role in ("img", "image") and name.startswith(f"{WAITING}; mean: rank 16 ") for role, name in named)
