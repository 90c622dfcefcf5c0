"""The engine in a thread of the process that reads through it: `engine="inline"`.

It is the engine that otherwise has a process of its own, with its lock, its socket and its grace time. Workers and
other processes connect to it as to any other, and see its end like that of a process. State of the whole process is
left alone: signals, limits, the garbage collector, the log.
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

from streamer.config import EngineConfig, Environment
from streamer.errors import BrokenError, StreamerError
from streamer.service.embedded import configuration
from streamer.service.lifecycle import EngineService
from streamer.service.startup_timing import StartupTiming

logger = logging.getLogger(__name__)

# Time for the end of an engine without clients, whose cancellation takes milliseconds. One that hangs in a system call
# is left to the end of the process.
_END_SECONDS = 10.0


class InlineEngine:
    """A thread with an event loop, from the start of an engine to its end."""

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
            StreamerError: the reason why it did not start.
        """
        self._thread.start()
        self._decided.wait()
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Ends the engine and waits for its end, from any thread but its own; idempotent."""
        if (running := self._running) is not None:
            loop, life = running
            with contextlib.suppress(RuntimeError):  # it has already ended
                loop.call_soon_threadsafe(life.leave)
        self._thread.join(_END_SECONDS)

    def serves_others(self) -> bool:
        """Whether other processes are connected."""
        return self._running is not None and self._running[1].serves_others()

    def descriptors(self) -> list[int]:
        """Descriptors that a fork of this process must not keep open."""
        return [] if self._running is None else self._running[1].descriptors()

    def _serve(self) -> None:
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
# Engines of the process that this one is a fork of: their threads are not here, and nothing of theirs may be closed.
_of_parents: list[InlineEngine] = []


def start(settings: Mapping[str, object]) -> None:
    """Starts an engine, and returns when it listens.

    Raises:
        StreamerError: the reason why it did not start.
    """
    InlineEngine(configuration(settings, Environment.read())).start()


def end(unless_at: Collection[Path] = (), *, shared: bool = True) -> None:
    """Ends the engines of this process, and waits for their end.

    Args:
        unless_at: sockets of the engines that stay.
        shared: whether to end those that serve other processes, too.
    """
    for engine in _engines.copy():
        if engine.path not in unless_at and (shared or not engine.serves_others()):
            engine.end()


def _release_in_child() -> None:
    """Releases what only the parent may hold: its clients would wait for ever for the end of a socket held here.

    The numbers stay in use, so that whatever closes them later closes nothing else.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for engine in _engines:
        for descriptor in engine.descriptors():
            os.dup2(null, descriptor, inheritable=False)
    os.close(null)
    _of_parents.extend(_engines)
    _engines.clear()


os.register_at_fork(after_in_child=_release_in_child)
