"""The page at `/` of a service, in a real browser, mostly over made-up statistics: its figures and its names."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from html.parser import HTMLParser
from pathlib import Path

import aiohttp
import pytest

from streamer.cli.status_view import StatusView
from streamer.service.web import serve_http
from tests.e2e.browser import PROGRAM, Browser, browser
from tests.e2e.services import Service, from_metrics, make_statistics, plain, wait_for

ADDRESS = "127.0.0.1:9468"
HOSTILE = '<img src=x onerror="document.title=1">'


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no browser: apt-get install chromium"),
]


class Text(HTMLParser):
    """Parses what a page shows: definition lists as pairs, table rows as lists, everything as words."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.terms: list[str] = []
        self.descriptions: list[str] = []
        self.rows: list[list[str]] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(re.sub(r"<(script|style)>.*?</\1>", "", page, flags=re.DOTALL))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "progress", "img", "link"):
            self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif tag in ("dt", "dd"):
            (self.terms if tag == "dt" else self.descriptions).append("")

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, text: str) -> None:
        self.words.append(text)
        if "td" in self._open or ("th" in self._open and "tr" in self._open):
            self.rows[-1][-1] += text
        elif "dt" in self._open:
            self.terms[-1] += text
        elif "dd" in self._open:
            self.descriptions[-1] += text


@asynccontextmanager
async def page(values: dict[str, object], **window: object) -> AsyncIterator[Browser]:
    """Yields the page of an engine with these statistics."""
    async with browser() as chromium, serve_http(ADDRESS, lambda: values, lambda: ""):
        await chromium.open(f"http://{ADDRESS}/", **window)
        yield chromium


async def text_of(chromium: Browser) -> Text:
    return Text(await chromium.evaluate("document.documentElement.outerHTML"))


async def test_the_figures_are_those_of_top() -> None:
    """The page shows every figure of the engine, and the rows of all ranks, in the words of `streamer top`."""
    values = make_statistics(ranks=3, datasets=2, job="train")
    async with page(values) as chromium:
        text = await text_of(chromium)
    view = StatusView(values)
    assert list(zip(text.terms, text.descriptions, strict=True)) == view.lines()
    rows = {row[0]: row[1:] for row in text.rows}
    for cells in map(view.session_cells, view.sessions):
        bottleneck = cells["bottleneck"].partition(":")[0]
        assert rows[cells["consumer"]] == [
            *(cells["loader"], bottleneck, cells["waiting"]),
            *(cells["epoch"], cells["step"], cells["hits"]),
        ]
    assert [row for row in text.rows if row[0].startswith("set ")] == list(map(list, view.member_rows()))
    assert rows["s3://bucket/train-1/"] == ["01010101", "1,281,168", "146.6 GB", "3"]
    words = "".join(text.words)
    assert "not input-bound on 2, decode on 1; rank 1 waits most, 41.2% of its time, decode: 4 more workers" in words
    assert "streamer on gpu-07" in words
    assert "Waiting for data: train." in words
    assert "WARNING streamer.fetch.pacing s3://bucket answers 503" in words
    assert "about 600 a second (3 times)" in words


async def test_rates_are_those_of_the_time_between_two_looks() -> None:
    """Rates on the page are those between two looks, by the engine's own clock.

    The engine reads 50 MB in 20 requests in half a second.
    """
    values = make_statistics(ranks=1)
    async with page(values) as chromium:
        values.update(store_bytes=9.4e11 + 5e7, store_requests=112_020, uptime_seconds=3724.0)
        store = "[...document.querySelectorAll('dd')][2].textContent"
        await chromium.until(f"!{store}.startsWith('252.5')")
        assert await chromium.evaluate(store) == "100.0 MB/s, 40 requests/s"


async def test_an_engine_that_does_not_answer_is_announced() -> None:
    """A page without an answer keeps its figures, marks them as old and announces it to screen readers."""
    async with browser() as chromium:
        async with serve_http(ADDRESS, make_statistics, lambda: ""):
            await chromium.open(f"http://{ADDRESS}/")
        await chromium.until("document.body.classList.contains('stale')")
        state = await chromium.evaluate("document.querySelector('[role=status][aria-live=polite]').textContent")
        assert state == "The engine does not answer; the figures are old."
        assert len((await text_of(chromium)).descriptions) == 12


async def test_names_of_clients_stay_text() -> None:
    """The page shows markup in the name of a job, a consumer, an advice, a url or a warning as text."""
    found = make_statistics(ranks=1, datasets=1, job=HOSTILE)
    for table, name in (("sessions", "consumer"), ("sessions", "advice"), ("datasets", "url"), ("warnings", "text")):
        found[table][0][name] = HOSTILE
    async with page(found) as chromium:
        text = await text_of(chromium)
        assert await chromium.evaluate("document.title") == "streamer"
    assert "img" not in text.tags
    assert "".join(text.words).count(HOSTILE) >= 5
    assert [row[0] for row in text.rows].count(HOSTILE) == 2


async def test_a_script_that_is_not_the_pages_own_does_not_run() -> None:
    """The page's policy runs no injected script, makes no markup of strings, and lets it ask its own server only."""
    async with page(make_statistics()) as chromium:
        async with aiohttp.ClientSession() as session, session.get(f"http://{ADDRESS}/") as answer:
            policy = dict(part.split(" ", 1) for part in answer.headers["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["connect-src"] == "'self'"
        made = (
            "(() => {const made = document.createElement('script'); made.append('window.ran = 1');"
            "document.body.append(made)})()"
        )
        for attempt in (made, "document.body.innerHTML = '<b>markup</b>'", f"fetch('http://{ADDRESS}0/')"):
            await chromium.evaluate(attempt)
        assert await chromium.evaluate("window.ran === undefined && document.querySelector('b') === null")


async def test_of_many_ranks_the_worst_are_in_sight() -> None:
    """The page shows the eight ranks that wait most, the first of them on top, and all of them on request.

    The list of all stays open when figures change, and what has the focus keeps it.
    """
    async with page(make_statistics()) as chromium:
        text = await text_of(chromium)
        closed = "document.querySelector('details').open === false"
        assert await chromium.evaluate(closed)
        # It stays open when the figures change, and what has the focus keeps it.
        await chromium.evaluate("document.querySelector('summary').click()")
        await chromium.evaluate("document.querySelector('#jobs .scroll').focus()")
        await chromium.evaluate("document.querySelector('section h3').textContent = 'old'")
        await chromium.until("document.querySelector('section h3').textContent !== 'old'")
        assert not await chromium.evaluate(closed)
        assert await chromium.evaluate("document.activeElement.className") == "scroll"
    ranks = [row[0] for row in text.rows if row[0].startswith("rank ")]
    assert ranks[:4] == ["rank 1", "rank 22", "rank 43", "rank 63"]
    assert ranks[8:] == [f"rank {rank}" for rank in range(64)]
    assert len([row for row in text.rows if row[0].startswith("s3://")]) == 20
    assert len([row for row in text.rows if row[0].startswith("set ")]) == 20


async def test_a_job_that_waits_is_not_called_failed() -> None:
    """The page says which jobs failed and which wait, each in a sentence, and shows the error in red with its job."""
    values = make_statistics(ranks=2, job="waits")
    failed = {**values["sessions"][0], "job": "fails", "failed": "AccessDeniedError", "loader_waiting_share": None}
    text = "job fails, rank 0 got AccessDeniedError: s3://bucket/a: the store answered 403"
    error = {"at_seconds": 1795440000.0, "level": "ERROR", "logger": "streamer.service.recent_warnings", "text": text}
    values.update(sessions=[*values["sessions"], failed], warnings=[{**error, "count": 1}])
    async with page(values) as chromium:
        assert await chromium.evaluate("document.querySelector('#state').textContent") == (
            "Failed: fails. Waiting for data: waits."
        )
        assert await chromium.evaluate("document.querySelector('#warnings .bad').textContent") == "ERROR"
        assert text in "".join((await text_of(chromium)).words)


async def test_jobs_come_first_on_a_phone(pictures: Path) -> None:
    """Jobs are in sight without scrolling on a phone, above the engine's figures, which fill more than a screen."""
    async with page(make_statistics(), width=390, height=844, dark=True) as chromium:
        await chromium.draw(pictures / "page-phone.png")
        top = "document.querySelector('#{}').getBoundingClientRect().top"
        assert await chromium.evaluate(top.format("jobs-title")) < 250
        assert await chromium.evaluate(top.format("engine-title")) > await chromium.evaluate(top.format("jobs"))


@pytest.mark.parametrize("width", [320, 390, 1280])
async def test_the_page_fits_its_window(width: int) -> None:
    """The page fits windows of 320, 390 and 1280 pixels: only a table's own box scrolls sideways."""
    async with page(make_statistics(), width=width) as chromium:
        whole = "document.documentElement"
        assert await chromium.evaluate(
            f"{whole}.scrollWidth === {whole}.clientWidth && {whole}.clientWidth > {width - 20}"
        )


async def test_a_screen_reader_finds_its_way() -> None:
    """The page tells assistive programs its headings, a status, and tables with captions and headers."""
    async with page(make_statistics(ranks=2, datasets=1, job="train")) as chromium:
        nodes = (await chromium.call("Accessibility.getFullAXTree"))["nodes"]
    named = {(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if "role" in node}
    parts = ("Engine", "Jobs", "Datasets", "Last warnings and errors")
    assert {("heading", title) for title in ("streamer on gpu-07", "train", *parts)} <= named
    assert {("region", title) for title in parts} <= named
    assert ("table", "Ranks of train") in named
    assert {("rowheader", "rank 0"), ("columnheader", "bottleneck")} <= named
    assert ("progressbar", "share of the cache that is taken") in named
    assert any(role == "status" for role, _ in named)


# Of the rest, clocks run on between two looks.
STANDING = ("in flight", "first byte", "hits", "fill", "tail", "trouble")


async def test_the_figures_are_those_of_metrics(tmp_path: Path) -> None:
    """The page and /metrics have the same figures of engine and ranks (a job is stopped in the middle of an epoch)."""
    service = Service(tmp_path, 9469)
    with ExitStack() as stack:
        stack.enter_context(service.running())
        ranks = [stack.enter_context(service.rank(number)) for number in range(2)]
        wait_for(ranks, 1, 20)
        for rank in ranks:
            os.killpg(rank.pid, signal.SIGSTOP)
        async with browser() as chromium:
            await chromium.open(f"http://{service.http}/")
            async with asyncio.timeout(60):
                while (shown := _standing(await text_of(chromium))) != (scraped := await _scraped(service)):  # noqa: ASYNC110
                    await asyncio.sleep(0.5)
    assert shown == scraped
    assert "so far, the cache keeps" in shown[0]["hits"]
    assert [row[0] for row in shown[1]] == ["rank 0", "rank 1"]


def _standing(text: Text) -> tuple[dict[str, str], list[list[str]]]:
    figures = dict(zip(text.terms, text.descriptions, strict=True))
    # The tables below the curves are narrower.
    rows = [row[:3] + row[4:] for row in text.rows if row[0].startswith("rank ") and len(row) == 7]
    return {name: figures[name] for name in STANDING}, rows


async def _scraped(service: Service) -> tuple[dict[str, str], list[list[str]]]:
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://{service.http}/statistics.json") as answer:
            names = await answer.json()
        async with session.get(f"http://{service.http}/metrics") as answer:
            view = StatusView(plain(from_metrics(await answer.text(), names)))
    rows = [
        [
            *(cells["consumer"], cells["loader"], cells["bottleneck"].partition(":")[0]),
            *(cells["epoch"], cells["step"], cells["hits"]),
        ]
        for cells in map(view.session_cells, view.sessions)
    ]
    return {name: text for name, text in view.lines() if name in STANDING}, sorted(rows)
