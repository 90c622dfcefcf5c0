"""Draws the pictures of the service's page in docs/deploy/. Needs Chromium.

    python docs/deploy/page_pictures.py [FOLDER]

page.png, curves.png and curves-phone.png are of a service whose job waits: its bucket is behind a slow link, and the
service is restarted meanwhile. Every figure is of that run. page-phone.png is the page in the dark on a phone, of an
engine with 64 ranks and 20 datasets, which are made up.
"""

# One task: nothing else waits for its loop.
# ruff: noqa: ASYNC110, ASYNC220, ASYNC240

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import aiohttp
import numpy as np

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
from screenshot import SAMPLE_BYTES, Service, wait_for  # noqa: E402

from examples.bucket.store import BUCKET, Link, Store, request  # noqa: E402 - a script has no package

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SECONDS = 60
BEFORE_SECONDS = 40
AFTER_SECONDS = 30
# The first answer of the engine is there.
READY = "document.querySelectorAll('#figures dd').length > 0"


class Browser:
    """A page of a headless Chromium, over its DevTools protocol.

    Attributes:
        errors: what the console of the page has said in red, exceptions among it.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.errors: list[str] = []
        self._socket = socket
        self._session: str | None = None
        self._number = 0

    async def call(self, method: str, **parameters: object) -> dict[str, object]:
        """One command and its result."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        await self._socket.send_json(command | ({"sessionId": self._session} if self._session else {}))
        while True:
            answer = json.loads(await self._socket.receive_str(timeout=SECONDS))
            self._note_error(answer)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])

    def _note_error(self, event: dict[str, object]) -> None:
        said = event.get("params")
        if not isinstance(said, dict):
            return
        is_error = {
            "Runtime.exceptionThrown": True,
            "Runtime.consoleAPICalled": said.get("type") in ("error", "assert"),
            "Log.entryAdded": said.get("entry", {}).get("level") == "error",
        }
        if is_error.get(str(event.get("method"))):
            self.errors.append(json.dumps(said))

    async def open(self, url: str, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        """Shows a page until its first figures are there."""
        if self._session is None:
            target = await self.call("Target.createTarget", url="about:blank")
            attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
            self._session = str(attached["sessionId"])
            await self.call("Runtime.enable")
            await self.call("Log.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        await self.call("Page.navigate", url=url)
        await self.until(READY)

    async def until(self, condition: str) -> None:
        """Waits for what a script says of the page."""
        async with asyncio.timeout(SECONDS):
            while not await self.evaluate(condition):
                await asyncio.sleep(0.05)

    async def evaluate(self, script: str) -> object:
        """The value of an expression in the page."""
        found = await self.call("Runtime.evaluate", expression=script, returnByValue=True)
        result = found["result"]
        return result.get("value") if isinstance(result, dict) else None

    async def picture(self, path: Path) -> None:
        """Of the window, as PNG."""
        found = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(str(found["data"])))


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """A Chromium that has seen nothing yet; it ends with the context."""
    assert PROGRAM is not None, "needs Chromium: apt-get install chromium"
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as folder:
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        command = [PROGRAM, *options, "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            address = await _address(Path(folder, "DevToolsActivePort"))
            async with aiohttp.ClientSession() as session, session.ws_connect(address, max_msg_size=0) as socket:
                made = Browser(socket)
                yield made
                made._session = None
                await made.call("Browser.close")
            process.wait(SECONDS)
        finally:
            process.kill()
            process.wait()


async def _address(file: Path) -> str:
    async with asyncio.timeout(SECONDS):
        while not file.exists() or len(lines := file.read_text().splitlines()) < 2:
            await asyncio.sleep(0.05)
    return f"ws://127.0.0.1:{lines[0]}{lines[1]}"


def crowded(ranks: int = 64, datasets: int = 20, job: str = "imagenet-vit-b16") -> dict[str, object]:
    """Statistics of an engine with many ranks; every rank is different, so that a misplaced figure is seen."""
    sessions = [_session(rank, job) for rank in range(ranks)]
    tables = [
        {
            "dataset": f"{number:02x}" * 32,
            "url": f"s3://bucket/train-{number}/",
            "samples": 1_281_167 + number,
            "total_bytes": 146_640_000_000,
            "sessions": ranks,
        }
        for number in range(datasets)
    ]
    figures = {"pid": 4711, "version": "0.2.0", "uptime_seconds": 3723.5, "connections": ranks, "draining": False}
    figures |= {"host": "gpu-07", "cache_dir": "/nvme/streamer", "disk_free_bytes": 4.3e11, "disk_bytes": 1.9e12}
    figures |= {"store_bytes": 9.4e11, "store_requests": 112_000, "in_flight": 17, "window": 64, "fetches": 12}
    figures |= {"first_byte_p50_seconds": 0.031, "first_byte_p99_seconds": 0.118, "hit_bytes": 4.1e11}
    figures |= {"kept_bytes": 1.61e11, "transit_bytes": 2.3e9, "limit_bytes": 2e11, "hedges": 12, "hedge_wins": 7}
    figures |= {"retries": 3, "throttled": 1, "failures": 0, "errors": 0, "rejected_chunks": 0, "hit_bound": 0.487}
    text = "s3://bucket answers 503 to 3 of 112000 requests and permits about 600 a second"
    warning = {"at_seconds": 1795440000.0, "level": "WARNING", "logger": "streamer.fetch.pacing", "text": text}
    members = [_member(rank, number, job) for rank in range(ranks) for number in range(datasets)]
    rest = {"anonymous_bytes": 123456789, "members": members, "warnings": [{**warning, "count": 3}]}
    return {**figures, **rest, "sessions": sessions, "datasets": tables}


def _member(rank: int, number: int, job: str) -> dict[str, object]:
    needed = {"needed_bytes": 3_300_000 * (number + 1) + rank, "hit_bytes": 1_700_000 + rank}
    return {
        "job": job,
        "consumer": f"rank {rank}",
        "member": f"set {number}",
        **needed,
        "hit_bound": 0.4 + number / 100,
    }


def _session(rank: int, job: str) -> dict[str, object]:
    worst = rank % 21 == 1
    return {
        "job": job,
        "consumer": f"rank {rank}",
        "dataset": f"{0:064x}",
        "waiting_seconds": 1.53 + rank / 10,
        "age_seconds": 100.0,
        "loader_waiting_share": 0.413 - rank / 1000 if worst else 0.011,
        "bottleneck": "decode" if worst else "not input-bound",
        "advice": "4 more workers (num_workers=8; 5.1 of 8 cores idle) or smaller images" if worst else "",
        "report_age_seconds": 3.0,
        "failed": "",
        "epoch": 2,
        "done": 12_345 + rank,
        "epoch_needed_bytes": 3_000_000,
        "epoch_hit_bytes": 1_460_000 + rank,
    }


async def draw_curves(chromium: Browser, service: SlowService, folder: Path) -> None:
    """Draws curves.png and curves-phone.png: the job waits, the service is restarted, the job goes on."""
    await chromium.open(f"http://{service.http}/", height=1400)
    await asyncio.sleep(BEFORE_SECONDS)
    service.restart()
    # The page stays open, and a new one shows the same: the history outlives the engine.
    await asyncio.sleep(AFTER_SECONDS)
    for name, width, dark in (("curves.png", 1280, False), ("curves-phone.png", 390, True)):
        await chromium.open(f"http://{service.http}/", width=width, height=1100, dark=dark)
        await chromium.until("document.querySelectorAll('#curves path').length > 8")
        await chromium.evaluate("document.querySelector('#curves-title').scrollIntoView()")
        await chromium.picture(folder / name)


async def _draw(folder: Path, service: SlowService) -> None:
    from streamer.service.web import serve_http

    async with browser() as chromium:
        await draw_curves(chromium, service, folder)
        await chromium.open(f"http://{service.http}/", height=840)
        # Rates are those between two looks.
        await asyncio.sleep(5)
        await chromium.picture(folder / "page.png")
        async with serve_http("127.0.0.1:9467", crowded, lambda: ""):
            await chromium.open("http://127.0.0.1:9467/", width=390, height=844, dark=True)
            await chromium.picture(folder / "page-phone.png")


class SlowService(Service):
    """A service over a bucket that gives 8 MB/s, less than its ranks can read; it may be restarted."""

    def __init__(self, folder: Path, port: int, job: str = "train") -> None:
        super().__init__(folder, port, job)
        self.url = f"s3://{BUCKET}/train/"
        self._parts = ExitStack()

    @contextmanager
    def at_work(self, ranks: int = 2) -> Iterator[None]:
        """From the start of the job to its end."""
        link = Link(first_byte_seconds=0.02, bytes_per_second=8_000_000)
        with Store(link) as store, ExitStack() as stack:
            self._fill(store.endpoint)
            with self._parts:
                self._parts.enter_context(self.running())
                wait_for([stack.enter_context(self.rank(number)) for number in range(ranks)], 0, 5)
                yield

    def restart(self) -> None:
        """Ends the service as a service manager does, and starts it again."""
        self._parts.close()
        self._parts.enter_context(self.running())

    def _fill(self, endpoint: str) -> None:
        request(endpoint, "PUT", f"/{BUCKET}")
        random = np.random.default_rng(5)
        for number in range(400):
            request(endpoint, "PUT", f"/{BUCKET}/train/{number % 4}/{number:04}.bin", random.bytes(SAMPLE_BYTES))
        options = f"{{ key = 'demo', secret = 'demo', client_kwargs = {{ endpoint_url = '{endpoint}' }} }}"
        (self.folder / "streamer.toml").write_text(
            f"[cache]\ndirectory = '{self.folder}/cache'\nlimit_bytes = '25MB'\n"
            f"[engine]\nsocket_path = '{self.folder}/s'\n[service]\nhttp = '{self.http}'\n"
            f"[[datasets]]\nurl = '{self.url}'\nstorage_options = {options}\n"
        )

    def _configure(self) -> Path:
        return self.folder / "streamer.toml"


def main() -> None:
    """Draws into the folder named, or into this one."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    with tempfile.TemporaryDirectory(prefix="page-") as name:
        service = SlowService(Path(name), 9466)
        with service.at_work():
            asyncio.run(_draw(folder, service))


if __name__ == "__main__":
    main()
