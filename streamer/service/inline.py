"""Runs an engine in a thread of the trainer's process, for `engine="inline"`.

`client/in_process.py` imports it by name. The engine has its own lock, socket and grace time, as one in a process of
its own has: workers and other processes connect to it, and see it end, in the same way. Signals, limits, garbage
collector, umask and log of the trainer's process stay as they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path

import uvloop

from streamer.base.system_limits import name_limits
from streamer.config import EngineConfig, Environment
from streamer.errors import BrokenError, StreamerError
from streamer.service.embedded import configuration
from streamer.service.lifecycle import EngineService
from streamer.service.startup_timing import StartupTiming

logger = logging.getLogger(__name__)

# How long to wait for an engine to end, which takes milliseconds unless it hangs in a system call. Then it ends with
# the process.
_END_SECONDS = 10.0


class InlineEngine:
    """Runs one engine in a thread with an event loop of its own. Used once.

    Args:
        config: configuration of the engine, with a socket path.

    Attributes:
        path: path of its socket.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self.path = config.socket_path
        self._decided = threading.Event()
        self._error: StreamerError | None = None
        self._running: tuple[asyncio.AbstractEventLoop, EngineService] | None = None
        self._thread = threading.Thread(target=self._serve, name="streamer-engine", daemon=True)

    def __repr__(self) -> str:
        return f"InlineEngine({self._config.cache.directory}, alive={self._thread.is_alive()})"

    def start(self) -> None:
        """Starts the thread; returns when clients can connect.

        Raises:
            StreamerError: the reason why it did not start. A ConfigError, if no further thread may start.
        """
        with name_limits():
            self._thread.start()
        self._decided.wait()
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Ends the engine, and waits at most `_END_SECONDS` for its end; any thread but its own. Idempotent."""
        if (running := self._running) is not None:
            loop, life = running
            with contextlib.suppress(RuntimeError):  # it has already ended
                loop.call_soon_threadsafe(life.leave)
        self._thread.join(_END_SECONDS)

    def serves_others(self) -> bool:
        """Whether processes other than this one are connected; any thread."""
        return self._running is not None and self._running[1].serves_others()

    def descriptors(self) -> list[int]:
        """Returns the descriptors that a fork of this process must not keep open: lock, sockets and connections."""
        return [] if self._running is None else self._running[1].descriptors()

    def _serve(self) -> None:
        """Runs the engine in the thread; an error is kept for `start`, and logged if the engine has listened before."""
        _engines.append(self)
        try:
            uvloop.run(self._live())
        except StreamerError as error:
            self._note_error(error)
        except BaseException as error:
            logger.exception("the engine of %s failed", self._config.cache.directory)
            self._note_error(BrokenError(f"the engine failed: {error!r}"))
        finally:
            self._running = None
            _engines.remove(self)
            self._decided.set()

    async def _live(self) -> None:
        life = EngineService(
            self._config, self._decided.set, timing=StartupTiming(time.monotonic(), time.monotonic), guest=True
        )
        self._running = asyncio.get_running_loop(), life
        await life.run()

    def _note_error(self, error: StreamerError) -> None:
        if self._decided.is_set():
            logger.error("the engine of %s ended: %s", self._config.cache.directory, error)
        self._error = error


_engines: list[InlineEngine] = []
# Engines of the parents of which this process is a fork. They are kept so that nothing of theirs is closed: their
# threads run only in the parent.
_of_parents: list[InlineEngine] = []


def start(settings: Mapping[str, object]) -> None:
    """Starts an engine in this process, and returns when it listens.

    Args:
        settings: see `embedded.configuration`.

    Raises:
        StreamerError: the reason why it did not start. A ConfigError, if no further thread may start.
    """
    InlineEngine(configuration(settings, Environment.read())).start()


def end(unless_at: Collection[Path] = (), *, shared: bool = True) -> None:
    """Ends the engines of this process, and waits at most `_END_SECONDS` for the end of each.

    Args:
        unless_at: paths of the sockets whose engines stay.
        shared: whether to end engines to which other processes are connected, too.
    """
    for engine in _engines.copy():
        if engine.path not in unless_at and (shared or not engine.serves_others()):
            engine.end()


def _release_in_child() -> None:
    """Closes, in a child after a fork, the descriptors of the parent's engines, and forgets the engines.

    Otherwise clients would wait for ever for the end of a socket that the child has open. The numbers are pointed at
    /dev/null instead of being freed, so that later code that closes them closes nothing else.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for engine in _engines:
        for descriptor in engine.descriptors():
            os.dup2(null, descriptor, inheritable=False)
    os.close(null)
    _of_parents.extend(_engines)
    _engines.clear()


os.register_at_fork(after_in_child=_release_in_child)
