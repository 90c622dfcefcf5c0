"""One endpoint: its store, its window, its retry budget, what it was seen to do."""

from __future__ import annotations

import asyncio

from streamer.config import FetchConfig
from streamer.errors import StreamerError, ThrottledError
from streamer.fetch.gate import Gate
from streamer.fetch.retry import RetryTokens, asked_seconds
from streamer.fetch.window import WindowControl
from streamer.store.base import ObjectStore


class Endpoint:
    """What the requests to one bucket or host share. Lives on one event loop."""

    def __init__(self, root: str, store: ObjectStore, config: FetchConfig) -> None:
        self.root = root
        self.store = store
        self.control = WindowControl(config.window_start, config.window_min, config.window_max)
        self.gate = Gate(self.control.size)
        self.tokens = RetryTokens()
        self.last_success: float | None = None

    def __repr__(self) -> str:
        return f"Endpoint({self.root!r}, {self.control}, {self.gate})"

    def succeeded(self, seconds: float, length: int) -> None:
        """A request went through in `seconds`."""
        self.last_success = now = asyncio.get_running_loop().time()
        self.tokens.succeeded()
        self.control.finished(now, seconds, length, contended=self.gate.contended)
        self._resize()

    def failed(self, error: StreamerError) -> None:
        """A request failed; pushback lowers the window, Retry-After closes it for a while."""
        if not isinstance(error, ThrottledError):
            return
        now = asyncio.get_running_loop().time()
        self.control.refused(now)
        if pause := asked_seconds(error):
            self.gate.close_until(now + pause)
        self._resize()

    def alone(self, first_failure: float) -> bool:
        """Whether a failure since `first_failure` is the request's own: others go through, or nobody ever did."""
        return self.last_success is None or self.last_success > first_failure

    def _resize(self) -> None:
        if self.gate.limit != self.control.size:
            self.gate.resize(self.control.size)
