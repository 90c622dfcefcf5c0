"""Curves on the page of a real service, in a real browser: jobs that wait, as lines and as tables of text.

`make pictures` has the pictures that docs/deploy/monitoring.md shows drawn by these tests, which take longer then.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec import structs

from streamer.service.history.history import History, RankSample
from streamer.service.web import serve_http
from tests.e2e.browser import PROGRAM, Browser, browser
from tests.e2e.services import SlowService, make_statistics, wait_for

ADDRESS = "127.0.0.1:9470"
# The curves of a picture that people look at are of more than a few seconds.
IS_FOR_DOCS = bool(os.environ.get("PICTURES"))
WINDOWS = [("", 1280, False), ("-dark", 1280, True), ("-phone-light", 390, False), ("-phone", 390, True)]
HOSTILE = '<img src=x onerror="document.title=1">'
WAITING = "Waiting for the engine"
TITLES = [
    *("Samples per second", "Waiting, whatever for", WAITING, "Bytes per second"),
    *("Hits and fill of the cache", "Requests in flight", "Time to first byte", "Refusals and retries per second"),
]


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no browser: apt-get install chromium"),
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


async def _charts(chromium: Browser) -> dict[str, dict[str, object]]:
    return {chart["title"]: chart for chart in await chromium.evaluate(CHARTS)}


@pytest.mark.pages
async def test_jobs_that_wait_have_curves(service_folder: Path, pictures: Path) -> None:
    """The page draws curves of waiting jobs, with the same as text; they fit a phone and outlive the engine."""
    service = SlowService(service_folder, 9471)
    with service.at_work(train=2, eval=1):
        async with browser() as chromium:
            await chromium.open(f"http://{service.http}/", height=840)
            await chromium.until("document.querySelectorAll('#curves path').length > 8")
            await asyncio.sleep(40 if IS_FOR_DOCS else 10)
            await chromium.draw(pictures / "page.png")
            charts = await _charts(chromium)
            assert list(charts) == TITLES
            waiting = charts[WAITING]
            assert [row[0] for row in waiting["values"]] == ["eval: rank 0", "train: rank 0", "train: rank 1"]
            # The link gives less than the ranks can read.
            assert all(float(row[2].rstrip("%")) > 10 for row in waiting["values"])
            assert min(waiting["points"]) > 3
            assert len(waiting["times"]) > 1
            assert waiting["label"].startswith("Waiting for the engine; mean: eval: rank 0 ")
            assert [row[0] for row in charts["Bytes per second"]["values"]] == ["from the store", "from the cache"]
            await chromium.evaluate("document.querySelector('#whole').click()")
            await chromium.until("document.querySelector('#whole').getAttribute('aria-pressed') === 'true'")
            await asyncio.sleep(1)
            assert list(await _charts(chromium)) == TITLES
            await chromium.draw(pictures / "curves-whole.png", "#curves-title")
            assert chromium.errors == []
            await chromium.evaluate("console.error('an error is seen')")
            assert "an error is seen" in chromium.errors.pop()
            # The history outlives the engine.
            service.restart()
            await asyncio.sleep(30 if IS_FOR_DOCS else 3)
            for name, width, dark in WINDOWS:
                await chromium.open(f"http://{service.http}/", width=width, height=1100, dark=dark)
                await chromium.until("document.querySelectorAll('#curves path').length > 8")
                await chromium.draw(pictures / f"curves{name}.png", "#curves-title")
            # A third job, whose name is markup.
            with service.rank(0, HOSTILE, ranks=1) as rank:
                wait_for([rank], 0, 1)
                for width in (320, 390):
                    await chromium.open(f"http://{service.http}/", width=width)
                    await chromium.until(f"{MARKS}.includes('the engine started again')")
                    assert max((await _charts(chromium))[WAITING]["points"]) >= max(waiting["points"])
                    assert not await chromium.evaluate(IS_SCROLLED_SIDEWAYS)
                await chromium.until(f"{MARKS}.includes({json.dumps(HOSTILE)})")
                assert await chromium.evaluate("document.title === 'streamer' && !document.querySelector('img')")


@asynccontextmanager
async def drawn(history: History, **window: object) -> AsyncIterator[Browser]:
    """Yields the page of an engine with this history, as soon as its curves are there."""
    async with browser() as chromium, serve_http(ADDRESS, make_statistics, lambda: "", history):
        await chromium.open(f"http://{ADDRESS}/", **window)
        await chromium.until("document.querySelectorAll('#curves figure').length > 0")
        yield chromium


def _past(ranks: dict[tuple[str, str, str], RankSample], seconds: int = 120) -> History:
    """Returns a history in which samples and waiting of each rank go up and down."""
    history = History()
    now = int(time.time())
    for second in range(now - seconds, now + 1):
        swing = {name: 1 + math.sin(second / 9 + number) / 3 for number, name in enumerate(ranks)}
        moved = {
            name: structs.replace(rank, samples=rank.samples * swing[name], waiting=rank.waiting * swing[name])
            for name, rank in ranks.items()
        }
        history.add(second, {"samples": 100.0, "peer_bytes": 5e6, "store_bytes": 1e6}, moved)
    return history


@pytest.mark.parametrize("width", [320, 390, 1280])
async def test_hostile_names_stay_text_in_curves(width: int) -> None:
    """The page shows markup in the names of jobs, ranks and marks as text, and long names do not widen it."""
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


async def test_of_many_ranks_eight_have_a_colour(pictures: Path) -> None:
    """The eight ranks that wait most have a colour; the others are grey, and the page says how many more there are.

    Reads from peers have a line of their own.
    """
    ranks = {
        ("train", f"rank {rank}", "0" * 64): RankSample(samples=9.0, waiting=rank / 100, loader=rank / 50)
        for rank in range(30)
    }
    history = _past(ranks)
    history.marks.add(time.time() - 90, "epoch", "epoch 1 of train")
    history.marks.add(time.time() - 40, "warning", "WARNING s3://bucket answers 503 to 3 of 112000 requests", 3)
    async with drawn(history, height=1100) as chromium:
        await chromium.draw(pictures / "curves-ranks.png", "#curves-title")
        charts = await _charts(chromium)
        assert len(charts[WAITING]["points"]) == 24
        assert [row[0] for row in charts[WAITING]["values"]] == [f"rank {rank}" for rank in range(16, 24)]
        assert await chromium.evaluate("document.querySelector('#curves').textContent.includes('6 more ranks')")
        assert ["from peers", "5.0 MB/s"] in [[row[0], row[2]] for row in charts["Bytes per second"]["values"]]
        nodes = (await chromium.call("Accessibility.getFullAXTree"))["nodes"]
        assert chromium.errors == []
    named = {(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if "role" in node}
    assert {("heading", "Curves"), ("region", "Curves"), ("table", WAITING), ("rowheader", "rank 23")} <= named
    assert any(role in ("img", "image") and name.startswith(f"{WAITING}; mean: rank 16 ") for role, name in named)
