"""A real headless Chromium in which tests open the page of a service, driven over its DevTools protocol."""

# One task: nothing else waits for its loop.
# ruff: noqa: ASYNC110, ASYNC220, ASYNC240

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SECONDS = 60
# The first answer of the engine is there.
READY = "document.querySelectorAll('#figures dd').length > 0"


class Browser:
    """Page of a real headless Chromium, driven over its DevTools protocol.

    Attributes:
        errors: Errors and exceptions that the page has written to its console, as JSON.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.errors: list[str] = []
        self._socket = socket
        self._session: str | None = None
        self._number = 0

    async def call(self, method: str, **parameters: object) -> dict[str, object]:
        """Sends a command, and returns its result."""
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
        """Waits until an expression is true in the page."""
        async with asyncio.timeout(SECONDS):
            while not await self.evaluate(condition):
                await asyncio.sleep(0.05)

    async def evaluate(self, script: str) -> object:
        """Returns the value of an expression in the page."""
        found = await self.call("Runtime.evaluate", expression=script, returnByValue=True)
        result = found["result"]
        return result.get("value") if isinstance(result, dict) else None

    async def draw(self, path: Path, part: str = "body") -> None:
        """Draws the window, scrolled to a part of the page, as PNG."""
        await self.evaluate(f"document.querySelector('{part}').scrollIntoView()")
        found = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(str(found["data"])))


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """Yields a Chromium that has seen nothing yet; it ends with the context."""
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
