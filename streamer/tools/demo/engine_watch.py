"""The demo's access to the engine: its counters, and killing it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterator

from msgspec.structs import replace

from streamer.base import linux
from streamer.client.engine_client import EngineClient
from streamer.client.settings import ClientSettings
from streamer.errors import StreamerError
from streamer.tools.demo.measured import Kill, Usage


class EngineWatch:
    """Reads the counters of the engine of a cache folder while the ranks use it.

    Counters of an engine that is killed are read just before, so that only the counts in between are lost.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._counted = self._of_killed = Usage()
        self._kill: Kill | None = None
        self._last_pid = -1

    @property
    def kill_seen(self) -> Kill | None:
        """The kill of the engine, once another engine has taken over."""
        return self._kill if self._kill is not None and self._kill.successor else None

    def usage_since(self) -> Usage:
        """Returns needs and hits since the last call, also over the end of an engine."""
        before, self._counted = self._counted, self._of_killed + self._usage()
        if self._kill is not None and not self._kill.successor:
            self._kill = replace(self._kill, successor=self._last_pid)
        return self._counted - before

    def kill(self, epoch: int) -> str:
        """Kills the engine with SIGKILL; returns a description."""
        self._of_killed = self._of_killed + self._usage()
        os.kill(self._last_pid, signal.SIGKILL)
        self._kill = Kill(pid=self._last_pid, successor=0, at_seconds=time.monotonic(), epoch=epoch)
        return f"engine {self._last_pid} killed with SIGKILL"

    def chunks(self) -> int:
        """Number of chunks of the dataset."""
        from streamer.manifest.table import Manifest

        with EngineClient(self._settings) as client:
            folders = [root.parent for root in (client.roots()[0] / "manifests").glob("*/root.json")]
        return sum(Manifest.open(folder).chunks for folder in folders)

    def await_gone(self, timeout_seconds: float) -> None:
        """Waits until the last engine has ended, as it does without connections.

        Raises:
            StreamerError: it does not end.
        """
        with (
            contextlib.suppress(ProcessLookupError, ValueError),
            end_of(self._last_pid) as handle,
        ):  # gone; or never seen
            if not select.select([handle], [], [], timeout_seconds)[0]:
                raise StreamerError(f"the engine still runs {timeout_seconds:.0f} s after the last rank ended")

    def _usage(self) -> Usage:
        with EngineClient(self._settings) as client:
            values = client.statistics()
        self._last_pid, *used = (int(str(values[name])) for name in ("pid", "needed_bytes", "hit_bytes"))
        return Usage(*used)


@contextlib.contextmanager
def end_of(pid: int) -> Iterator[int]:
    """Yields a descriptor that is readable when the process has ended."""
    descriptor = linux.pidfd(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
