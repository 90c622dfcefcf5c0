"""One try of a range with at most one duplicate: the request with the first byte delivers the body.

The first request runs in the caller's task. A duplicate runs in a task of the chunk's group and takes the caller's
place by cancelling it and being awaited instead (as asyncio.timeout does), so that the common case costs neither a task
nor a group (3 us of 40 for a small object, 2026-11-20).
"""

from __future__ import annotations

import asyncio

from streamer.errors import StreamerError
from streamer.fetch.request import Request, RequestSpec


class HedgedAttempt:
    """One try; `await run()` once, inside the window.

    Args:
        spec: the request.
        group: group in which a duplicate runs; the caller's task belongs to it, too.
    """

    def __init__(self, spec: RequestSpec, group: asyncio.TaskGroup) -> None:
        self._spec = spec
        self._group = group
        self._first = Request(spec, self._claim, self._start_duplicate)
        self._task: asyncio.Task[object] | None = None
        self._winner: Request | None = None
        self._duplicate: asyncio.Task[None] | None = None
        self._failure: StreamerError | None = None

    @property
    def received(self) -> int:
        """Bytes received by the request that had the first byte."""
        return self._winner.received if self._winner is not None else 0

    async def run(self) -> None:
        """Receives the extent. When it returns or raises, none of its requests is left.

        Raises:
            StoreError: this try failed; the received bytes are good.
        """
        self._task = asyncio.current_task(self._spec.endpoint.clock.loop)
        self._spec.endpoint.budget.earn(self._spec.extent.length)
        try:
            await self._first.receive()
        except StreamerError as error:
            self._failure = error
        except asyncio.CancelledError:
            if not self._is_overtaken():
                raise
            await self._wait_for_duplicate()
        finally:
            self._drop_duplicate()
            await self._wait_for_duplicate()
        if self._failure is not None:
            raise self._failure

    def _claim(self, request: Request) -> bool:
        """Lets the first request with a byte deliver the body and cancels the other."""
        if self._winner is not None:
            return self._winner is request
        self._winner = request
        if request is self._first:
            self._drop_duplicate()
        elif self._task is not None:
            self._spec.tally.hedge_wins += 1
            self._task.cancel()
        return True

    def _drop_duplicate(self) -> None:
        if self._duplicate is not None:
            self._duplicate.cancel()

    def _start_duplicate(self) -> None:
        """Sends a duplicate because the first byte is late, if the budget allows one."""
        if self._task is None or self._task.cancelling():  # the group accepts no more tasks
            return
        if self._winner is None and self._spec.endpoint.may_duplicate(self._spec.extent.length):
            self._spec.tally.hedges += 1
            self._duplicate = self._group.create_task(self._run_duplicate())

    async def _run_duplicate(self) -> None:
        endpoint = self._spec.endpoint
        endpoint.gate.force()
        try:
            await Request(self._spec, self._claim).receive()
        except StreamerError as error:
            if self._leads():  # it was first: its failure is the attempt's; otherwise the first request goes on alone
                self._failure = error
        finally:
            endpoint.gate.release()

    def _leads(self) -> bool:
        """Whether the duplicate delivers the body."""
        return self._winner is not None and self._winner is not self._first

    def _is_overtaken(self) -> bool:
        """Whether the cancellation just caught came from the duplicate, and only from it."""
        return self._leads() and self._task is not None and self._task.uncancel() == 0

    async def _wait_for_duplicate(self) -> None:
        if self._duplicate is not None and not self._duplicate.done():
            await asyncio.wait([self._duplicate])
