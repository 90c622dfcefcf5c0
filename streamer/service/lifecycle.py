"""Runs one engine from its start to its end: locks its cache folder, listens, and reloads its configuration.

Used by `cli/serve_command.py` for a service, and by `embedded.py` and `inline.py` for engines that clients start.

Start: the cache folder is locked, the engine starts, HTTP and the socket are opened, the engine is ready.
SIGTERM: it is not ready, the socket is removed, running fetches and requests end, connections end, the folder is
unlocked.
SIGHUP, or a changed file of secrets: the configuration is read again. It sets the limit of the cache, the datasets with
their options, and who may connect.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from streamer.base.cgroup import usable_cores
from streamer.base.extras import require_modules
from streamer.base.process import collect_rarely
from streamer.cache.folder_guard import take_locks
from streamer.cache.memory_folder import find_cache, remove_substitute
from streamer.config import CacheConfig, EngineConfig, check_socket_path
from streamer.engine.engine import Engine
from streamer.engine.maintenance import maintain
from streamer.errors import CacheError, ConfigError, StreamerError
from streamer.service.admission import Admission, raise_limits
from streamer.service.client_connection import ClientConnection
from streamer.service.listening import Listeners, listen
from streamer.service.recent_warnings import RecentWarnings, recent_warnings
from streamer.service.sd_notify import Notifier
from streamer.service.server import Server
from streamer.service.startup_timing import StartupTiming
from streamer.service.web import OFF, serve_http

if TYPE_CHECKING:
    from streamer.service.history.history import History

logger = logging.getLogger(__name__)

_Stamp = tuple[int, int, int] | None

MAX_THREADS = 32
# Pause between two looks at the files of secrets; kubelet itself looks once a minute.
LOOK_SECONDS = 5.0
# How long a starting engine waits for another one that is about to leave the same cache folder.
LOCK_SECONDS = 10.0
_LOCK_RETRY_SECONDS = 0.05
_OPEN_TO_ALL = (
    "no [[datasets]] in the configuration: one user is served, whose clients read every bucket and web server that "
    "this service reaches, with its credentials where they send none; local files, loopback and link-local addresses "
    "are refused; name what is served in [[datasets]]"
)


class EngineService:
    """One engine from its start to its end. Used once, on the loop of its process or thread.

    Args:
        config: its configuration, with a socket path.
        on_listening: called once when clients can connect.
        configure: reads the configuration again; if None, SIGHUP ends the process, as it does any program.
        notifier: tells the service manager about the state; None without a manager.
        timing: timing of the start so far; None makes all that came before one phase.
        guest: whether the engine is in the trainer's process, whose signals, limits and garbage collector it leaves as
            they are.
    """

    def __init__(
        self,
        config: EngineConfig,
        on_listening: Callable[[], None],
        configure: Callable[[], EngineConfig] | None = None,
        notifier: Notifier | None = None,
        *,
        timing: StartupTiming | None = None,
        guest: bool = False,
    ) -> None:
        if timing is None:
            timing = StartupTiming.begin_with_process()
            timing.end("program")
        self._timing = timing
        self._config = config
        self._on_listening = on_listening
        self._configure = configure
        self._notifier = notifier or Notifier(None)
        self._leave = asyncio.Event()
        self._hurry = asyncio.Event()
        self._reload = asyncio.Event()
        self._guest = guest
        self._held: list[int] = []
        self._server: Server | None = None
        self._listeners: Listeners | None = None
        # The cache that stands in for the configured one, whose disk takes nothing.
        self._in_memory: CacheConfig | None = None
        # The files of secrets of the present configuration, as they were when they were looked at last.
        self._secrets = {path: _stamp(path) for path in config.secret_files}

    def __repr__(self) -> str:
        return f"EngineService({self._config.cache.directory}, leaving={self._leave.is_set()})"

    async def run(self) -> None:
        """Starts the engine, and returns when it has ended.

        It ends when it has had no connection for the grace time, when `leave` is called, or, unless it is a guest, by
        SIGTERM or SIGINT.

        Raises:
            ConfigError, CacheError: the configuration, the cache folder, the socket or the address of HTTP cannot be
                used.
            Exception: any error of the engine.
        """
        if self._config.socket_path is None:
            raise ConfigError("an engine needs a socket path", field="socket_path")
        check_socket_path(self._config.socket_path)
        try:
            await self._run(self._config)
        except BaseExceptionGroup as group:
            # A task group wraps errors in groups. Callers expect the error itself.
            error: BaseException = group
            while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
                error = error.exceptions[0]
            raise error from group

    def leave(self) -> None:
        """Begins the end of the engine, on its loop; a second call ends at once what the first one waits for."""
        if self._leave.is_set():
            self._hurry.set()
        self._leave.set()

    def descriptors(self) -> list[int]:
        """Returns descriptors that a fork must not keep open: the folder's locks, the sockets, and the connections."""
        of_sockets = [] if self._listeners is None else self._listeners.descriptors()
        return [*self._held, *of_sockets, *(self._server.descriptors() if self._server is not None else ())]

    def serves_others(self) -> bool:
        """Whether processes other than this one are connected; any thread."""
        return self._server is not None and any(pid != os.getpid() for pid in self._server.pids())

    async def _run(self, config: EngineConfig) -> None:
        """Locks the cache folder, starts the engine and its server, and serves until the end."""
        if not self._guest:
            raise_limits()
            collect_rarely()
        cache, warning = find_cache(config.cache)
        self._in_memory = cache if warning else None
        config = replace(config, cache=cache)
        try:
            config.cache.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise CacheError(
                f"cache folder {config.cache.directory}: {error.strerror}; choose another cache_dir"
            ) from error
        if config.refuse_local:
            logger.warning(_OPEN_TO_ALL)
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(thread_count(), "streamer-work"))
        if config.cache.group is not None and not self._guest:
            # The mode of the folder lets the group in. A umask of 077 would keep it out of other files below. Manifests
            # get their mode from `manifest/staging.py`, since the umask of a trainer stays as it is.
            os.umask(0o022)
        lock_seconds = LOCK_SECONDS + config.service.drain_seconds
        folder = _only_engine(config.cache.directory, lock_seconds)
        with (
            contextlib.ExitStack() as on_exit,
            recent_warnings() as warnings,
            folder as locks,
            self._hold_descriptors(*locks),
        ):
            self._timing.end("lock")
            if warning:
                logger.warning("%s", warning)
                on_exit.callback(remove_substitute, config.cache.directory)
            async with Engine(config) as engine, maintain(engine), _join_peers(engine), asyncio.TaskGroup() as tasks:
                self._timing.end("cache")
                server = self._server = Server(
                    config, engine, tasks, self._leave.set, warnings=warnings.entries, cache_notice=warning
                )
                # Connections are closed also if the engine fails: in a thread, no end of a process would close them.
                with contextlib.closing(server):
                    async with _record_history(engine, warnings) as history:
                        await self._serve(engine, server, tasks, history)
            self._notifier.close()

    async def _serve(self, engine: Engine, server: Server, tasks: asyncio.TaskGroup, history: History | None) -> None:
        """Opens HTTP and the sockets, handles signals until the engine has to leave, and drains it."""
        config = engine.config

        def find_reason_to_wait() -> str:
            """Returns why no trainer should connect now; "" if trainers may connect."""
            return "the service is stopping" if self._leave.is_set() else ""

        async with serve_http(config.service.http, server.statistics, find_reason_to_wait, history):
            async with listen(config, lambda: ClientConnection(server)) as self._listeners:
                if not self._guest:
                    loop = asyncio.get_running_loop()
                    for number in (signal.SIGTERM, signal.SIGINT):
                        loop.add_signal_handler(number, self.leave)
                    if self._configure is not None:
                        loop.add_signal_handler(signal.SIGHUP, self._reload.set)
                self._on_listening()
                self._timing.end("socket")
                logger.info("listening after %s", self._timing)
                self._notifier.report_ready()
                watches = [
                    self._reload_on_signal(engine, server),
                    self._reload_on_new_secrets(),
                    self._listeners.watch(),
                ]
                watching = [tasks.create_task(watch) for watch in watches]
                await self._leave.wait()
                for watch in watching:
                    watch.cancel()
            self._notifier.report_stop()
            await self._drain(engine, server)

    @contextlib.contextmanager
    def _hold_descriptors(self, *descriptors: int) -> Iterator[None]:
        """Has `descriptors` name these numbers, too, until the block ends."""
        self._held.extend(descriptors)
        try:
            yield
        finally:
            for descriptor in descriptors:
                self._held.remove(descriptor)

    # ------------------------------------------------------------ the end

    async def _drain(self, engine: Engine, server: Server) -> None:
        """Lets running fetches and requests end, for at most `drain_seconds`; a second signal ends them at once.

        An engine with a grace time has no clients any more, or was told to leave: it cancels its requests.

        Raises:
            Exception: what ended the drain before its time.
        """
        seconds = self._config.service.drain_seconds
        if self._config.grace_seconds is not None:
            # Waiting for a listing held engine and folder for 60 s, for an index longer (2026-11-23). What an index has
            # read is in its log.
            await server.finish(0.0)
            return
        begun = time.monotonic()

        async def drain() -> None:
            async with asyncio.TaskGroup() as both:
                both.create_task(engine.drain(seconds))
                both.create_task(server.finish(seconds))

        drained = asyncio.ensure_future(drain())
        hurried = asyncio.ensure_future(self._hurry.wait())
        await asyncio.wait([drained, hurried], return_when=asyncio.FIRST_COMPLETED)
        for task in (drained, hurried):
            task.cancel()
        await asyncio.gather(drained, hurried, return_exceptions=True)
        if not drained.cancelled() and (error := drained.exception()) is not None:
            raise error
        logger.info("drained in %.2f s", time.monotonic() - begun)

    # ------------------------------------------------------------ signals

    async def _reload_on_signal(self, engine: Engine, server: Server) -> None:
        """Reads and applies the configuration at each SIGHUP; one that is refused is logged, and the engine goes on."""
        while True:
            await self._reload.wait()
            self._reload.clear()
            self._notifier.report_reload()
            try:
                assert self._configure is not None
                config = self._configure()
                if bool(config.datasets) != bool(self._config.datasets):
                    raise ConfigError("datasets cannot be added to a service that had none, or be removed; restart it")
                if self._in_memory is not None:  # the configured limit is meant for the disk
                    config = replace(config, cache=self._in_memory)
                # It may refuse the configuration, and is made before anything has changed.
                admission = Admission(config.cache, config.service)
                if self._listeners is not None:
                    self._listeners.reload(config)
                await engine.reload(config)
                server.reload(config, admission)
                self._config = config
                self._secrets = {path: self._secrets.get(path, _stamp(path)) for path in config.secret_files}
                logger.info("configuration read again: limit %d bytes", engine.cache.limit_bytes)
            except StreamerError as error:
                logger.error("the configuration stays as it was: %s", error)
            self._notifier.report_ready()

    async def _reload_on_new_secrets(self) -> None:
        """Has the configuration read again when one of its files of secrets has changed; looks at intervals.

        kubelet replaces the files of a mounted Secret by renaming a link, a minute after the Secret has changed,
        without a signal. A service that read them only at its start would go on with revoked keys.
        """
        while self._configure is not None:
            now = {path: _stamp(path) for path in self._secrets}
            if now != self._secrets:
                self._secrets = now
                logger.info("a file of secrets has changed")
                self._reload.set()
            await asyncio.sleep(LOOK_SECONDS)


def thread_count() -> int:
    """Returns how many threads an engine has for reading local files, for synchronous stores, and for manifests.

    It is asyncio's own rule, with the cores of the cgroup instead of the machine's. If threads exceed the cgroup's
    quota, the kernel stops the whole process, and with it the loop, for the rest of a period of 100 ms.
    """
    return min(MAX_THREADS, usable_cores() + 4)


def _join_peers(engine: Engine) -> contextlib.AbstractAsyncContextManager[object]:
    """Returns the context in which an engine shares its cache with the configured peers; an empty one without peers."""
    if not engine.config.peers.enabled:
        return contextlib.nullcontext()
    require_modules("[peers]", "peers", "aiohttp", "pycurl", field="peers")
    from streamer.peers.group import join_peers  # Here, so that an engine without peers does not import it.

    return join_peers(engine)


def _record_history(engine: Engine, warnings: RecentWarnings) -> contextlib.AbstractAsyncContextManager[History | None]:
    """Returns the context in which the history of an engine is kept; it gives None for a service without HTTP."""
    if engine.config.service.http in OFF:
        return contextlib.nullcontext()
    from streamer.service.history.recorder import keep_history  # Here, so that one without a page does not import it.

    return keep_history(engine, engine.cache.root, warnings)


# ---------------------------------------------------------------- the folder


@contextlib.contextmanager
def _only_engine(directory: Path, seconds: float) -> Iterator[list[int]]:
    """Locks the cache folder, and yields the descriptors of its locks (`cache/folder_guard.py`).

    Args:
        directory: The cache folder.
        seconds: How long to wait for another engine to leave it.

    Raises:
        CacheError: another engine still has it after that time.
    """
    with contextlib.ExitStack() as on_exit:
        deadline = time.monotonic() + seconds
        while (descriptors := take_locks(directory, on_exit)) is None:
            if time.monotonic() > deadline:
                raise CacheError(
                    f"{directory} is in use by another engine; one engine per cache folder: connect to that one "
                    "(STREAMER_ENGINE=unix:/its/socket) or choose another cache_dir",
                    where=str(directory),
                )
            # flock(2) has no timeout.
            time.sleep(_LOCK_RETRY_SECONDS)
        yield descriptors


def _stamp(path: Path) -> _Stamp:
    """Returns what tells whether a file has been replaced or changed; None if it cannot be found."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
