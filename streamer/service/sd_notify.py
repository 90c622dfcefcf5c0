"""Reports the state of a service to the service manager, such as systemd, by its protocol (sd_notify(3)).

`cli/serve_command.py` makes the notifier of `streamer serve`, and `lifecycle.py` calls it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time

logger = logging.getLogger(__name__)


class Notifier:
    """Sends the states READY, RELOADING, STOPPING and WATCHDOG, one datagram each; logs a failure and goes on.

    Args:
        address: content of $NOTIFY_SOCKET: a path, or "@name" in the abstract namespace; None without a manager, when
            nothing is sent.
        watchdog_seconds: the manager's watchdog interval; None if it does not watch.
    """

    def __init__(self, address: str | None, watchdog_seconds: float | None = None) -> None:
        self._address = address
        self._watchdog_seconds = watchdog_seconds
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"Notifier({self._address!r}, watchdog_seconds={self._watchdog_seconds})"

    def report_ready(self) -> None:
        """Reports that the service is ready, at the start or after a reload; starts the watchdog messages."""
        self._send("READY=1")
        if self._timer is None and self._watchdog_seconds:
            self._alive()

    def report_reload(self) -> None:
        """Reports that the service reads its configuration again; the caller ends that by `report_ready`."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def report_stop(self) -> None:
        """Reports that the service ends."""
        self._send("STOPPING=1")

    def close(self) -> None:
        """Ends the watchdog messages; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _alive(self) -> None:
        assert self._watchdog_seconds is not None
        self._send("WATCHDOG=1")
        # The pause is half of the interval, as sd_watchdog_enabled(3) recommends. The timer is on the loop, because a
        # service whose loop hangs is not alive.
        self._timer = asyncio.get_running_loop().call_later(self._watchdog_seconds / 2, self._alive)

    def _send(self, state: str) -> None:
        if self._address is None:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.sendto(state.encode(), address)
        except OSError as error:
            logger.warning("cannot notify the service manager at %s: %s", self._address, error)
