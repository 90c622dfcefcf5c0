"""Runs transfers of libcurl on an event loop.

Each store that reads by libcurl (`store/curl/store.py`) and the client of peers (`peers/client.py`) have a `Multi`.
pycurl's own AsyncCurlMulti adds a reader to the loop for each request and removes it again, by six system calls. Here
one epoll watches the sockets, also idle ones, and the loop watches that epoll. This takes one system call, and an
object of 100 KB takes 64 us instead of 76 (2026-11-22).
"""

from __future__ import annotations

import asyncio
import select
import threading
import time
from contextlib import suppress

import pycurl

from streamer.base import linux
from streamer.errors import ClosedError

_WATCHED = {
    pycurl.POLL_IN: select.POLLIN,
    pycurl.POLL_OUT: select.POLLOUT,
    pycurl.POLL_INOUT: select.POLLIN | select.POLLOUT,
}
# A turn of the event loop serves sockets for this long; those that are left come first in the next turn. A socket
# delivers up to 2 MB at once. When all 120 were served in one turn, the engine served no client for 250 ms, wrote no
# chunk meanwhile, and filled 300 MB of buffers instead of 100: that took 8 % of a cold epoch's time (2026-11-22).
_TURN_SECONDS = 0.001
# This many sockets are served between two readings of the clock.
_EVENTS = 2
_NEVER = float("inf")
# `close` waits at most this long for libcurl, which waits for a name that is being resolved: 10 to 20 s if no resolver
# answers.
_CLOSE_SECONDS = 1.0


class Multi:
    """Runs transfers that share their connections. Lives on the event loop that creates it.

    Args:
        idle_connections: how many idle connections are kept.

    Raises:
        ConfigError: there is no epoll (`linux.epoll`).
    """

    def __init__(self, idle_connections: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._pending: dict[pycurl.Curl, asyncio.Future[None]] = {}
        self._busy: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = _NEVER
        self._epoll = linux.epoll()
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_MAXCONNECTS, idle_connections)
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._call_after)
        self._loop.add_reader(self._epoll.fileno(), self._ready)

    def __repr__(self) -> str:
        return f"Multi({'closed' if self.closed else f'{len(self._pending)} pending'})"

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._epoll.closed

    async def perform(self, easy: pycurl.Curl) -> None:
        """Runs the transfer of a handle to its end; a cancelled call ends the transfer.

        Raises:
            pycurl.error: the transfer failed.
            ClosedError: `close` was called meanwhile.
            asyncio.CancelledError: the call was cancelled.
        """
        try:
            await self.start(easy)
        finally:
            self.remove(easy)

    def start(self, easy: pycurl.Curl) -> asyncio.Future[None]:
        """Starts the transfer of a handle. Its future ends as `perform` does, and the caller must call `remove`."""
        self._multi.add_handle(easy)
        ended = self._pending[easy] = self._loop.create_future()
        return ended

    def remove(self, easy: pycurl.Curl) -> None:
        """Ends the transfer of a handle, if it has not ended, and cancels its future; idempotent."""
        if easy in self._pending:
            self._take_out(easy).cancel()

    async def close(self) -> None:
        """Ends all transfers with a ClosedError and closes all connections. Idempotent.

        It returns after a second at the latest. A thread may still be closing some of them then.
        """
        if self.closed:
            return
        self._loop.remove_reader(self._epoll.fileno())
        for easy in list(self._pending):
            ended = self._take_out(easy)
            if not ended.done():  # its caller was cancelled
                ended.set_exception(ClosedError("the connections were closed while a request was in flight"))
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = -_NEVER  # no timer from the other thread
        self._epoll.close()
        closed = self._loop.create_future()
        threading.Thread(target=self._close_connections, args=[closed], name="streamer-curl-close", daemon=True).start()
        await asyncio.wait([closed], timeout=_CLOSE_SECONDS)

    def _close_connections(self, closed: asyncio.Future[None]) -> None:
        """Closes libcurl's object, which nothing else uses any more. Runs on its own thread, because it may block."""
        self._multi.close()
        with suppress(RuntimeError):  # the loop has ended meanwhile
            self._loop.call_soon_threadsafe(closed.set_result, None)

    def _watch(self, what: int, descriptor: int, _multi: object, _assigned: object) -> None:
        """Watches a socket for libcurl. One that libcurl waits for no longer stays watched until it is closed."""
        if (events := _WATCHED.get(what)) is None or self.closed:  # closed: libcurl shuts down on the other thread
            self._busy.discard(descriptor)
            return
        self._busy.add(descriptor)
        try:
            self._epoll.modify(descriptor, events)
        except FileNotFoundError:
            self._epoll.register(descriptor, events)

    def _ready(self) -> None:
        """Serves ready sockets for a while, and ends transfers that are complete; called by the loop."""
        end = time.monotonic() + _TURN_SECONDS
        while self._serve() == _EVENTS and time.monotonic() < end:
            pass
        self._resolve()

    def _serve(self) -> int:
        """Serves up to `_EVENTS` ready sockets, those first that have waited longest; returns their number."""
        ready = self._epoll.poll(0, _EVENTS)
        for descriptor, events in ready:
            if descriptor in self._busy:
                # Errors are found by reading.
                readable = pycurl.CSELECT_IN if events & ~select.POLLOUT else 0
                writable = pycurl.CSELECT_OUT if events & select.POLLOUT else 0
                self._act(descriptor, readable | writable)
            else:  # the server closed an idle connection; libcurl looks before it uses it again
                with suppress(OSError):
                    self._epoll.unregister(descriptor)
        return len(ready)

    def _call_after(self, milliseconds: int) -> None:
        """Sets the time at which libcurl wants to be called. libcurl calls this twice in each request; -1 is never.

        If libcurl is called too early it states the remaining time again. So the timer is only ever moved to earlier,
        and never removed.
        """
        moment = self._loop.time() + milliseconds / 1000
        if milliseconds < 0 or moment >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(moment, self._time_is_up)
        self._timer_at = moment

    def _time_is_up(self) -> None:
        self._timer = None
        self._timer_at = _NEVER
        self._act(pycurl.SOCKET_TIMEOUT, 0)
        self._resolve()

    def _act(self, descriptor: int, bits: int) -> None:
        """Lets libcurl read and write a socket, or handle its timer; ends all transfers if that fails."""
        try:
            self._multi.socket_action(descriptor, bits)
        except pycurl.error as error:  # otherwise no transfer would ever end
            for easy in list(self._pending):
                self._take_out(easy).set_exception(error)

    def _resolve(self) -> None:
        """Takes the ended transfers from libcurl, and sets the results of their futures."""
        _, succeeded, failed = self._multi.info_read()
        for easy in succeeded:
            ended = self._take_out(easy)
            if not ended.done():
                ended.set_result(None)
        for easy, code, text in failed:
            ended = self._take_out(easy)
            if not ended.done():
                ended.set_exception(pycurl.error(code, text))

    def _take_out(self, easy: pycurl.Curl) -> asyncio.Future[None]:
        """Removes a handle, and returns its future."""
        self._multi.remove_handle(easy)
        return self._pending.pop(easy)
