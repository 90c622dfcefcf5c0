"""Runs one fetch process from the engine's side: starts it, asks it for chunks, reads its answers and reports.

`pool.py` has a `FetchProcess` for each. `engine/bring.py` and `peers/source.py` use the bytes that it returns.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from contextlib import suppress

import msgspec
from msgspec import structs

from streamer.base.child import ConnectedChild, describe_exit, make_environment
from streamer.base.concurrency import in_thread
from streamer.base.message_socket import MessageSocket
from streamer.engine.processes.messages import (
    MAX_MESSAGE_BYTES,
    Answer,
    Bring,
    BringFailed,
    Brought,
    Cancel,
    GiveBack,
    OpenDataset,
    PaceAnew,
    Report,
    SetLimits,
    Setup,
    StoreNotice,
    ToEngine,
    ToProcess,
    decode_to_engine,
    encode,
)
from streamer.fetch.concurrency import FetchLimits
from streamer.fetch.statistics import COUNTS, FetchStatistics, Histogram
from streamer.recode.shared import map_memory

logger = logging.getLogger(__name__)

# Stands for the report of a process that has not sent one.
_NO_REPORT = Report(
    statistics={},
    first_byte_counts=Histogram().counts,
    first_byte_seconds=0.0,
    cpu_seconds=0.0,
    window=0,
    by_chance=False,
)
# A fetch process does no linear algebra: numpy's libraries start no further threads.
_SETTINGS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


# Signals of a crash. Other signals come from outside, such as SIGKILL when memory runs out.
_OWN_SIGNALS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT}


class ProcessEndedError(Exception):
    """Raised for a request whose fetch process has ended.

    Args:
        how: how the process ended, as text.
        crashed: whether it crashed (`_OWN_SIGNALS`), perhaps over the bytes of the chunk, so that another one may, too.
    """

    def __init__(self, how: str, *, crashed: bool = False) -> None:
        super().__init__(how)
        self.crashed = crashed


class LocalError(Exception):
    """Raised if fetch processes cannot write the file, read the manifest, or stay alive: the engine tries by itself."""


class SharedBytes:
    """The bytes of a chunk in a file in memory that a fetch process has sent. It is used like `fetch.Fetched`.

    Args:
        descriptor: descriptor of the file. None means that there is no file, because the chunk is published.
        length: number of bytes.
        give_back: called by `close`, when the bytes are not used any more.

    Attributes:
        content: descriptor of the file, which begins with the bytes. It is valid until `close`, and -1 without a file.
    """

    def __init__(self, descriptor: int | None, length: int, give_back: Callable[[], None]) -> None:
        self.content = -1 if descriptor is None else descriptor
        self._length = length
        self._give_back = None if descriptor is None else give_back
        self._view: memoryview | None = None

    def __repr__(self) -> str:
        return f"SharedBytes({self._length} bytes)"

    @property
    def parts(self) -> list[memoryview]:
        """Bytes of the chunk as one view in a list. Must not be asked for if there is no file."""
        if self._view is None:
            self._view = map_memory(self.content, self._length)
        return [self._view]

    def close(self) -> None:
        """Closes the file and gives its memory back to the process; idempotent. Does nothing without a file."""
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            self._view = None
            os.close(self.content)
            give_back()


class _Request(msgspec.Struct):
    """A request that is not answered yet.

    Attributes:
        answered: gets the answer, or `ProcessEndedError`.
        weight: number of requests to the store that the chunk takes.
        descriptor: descriptor of the file in memory that came with the answer, or None.
    """

    answered: asyncio.Future[Answer]
    weight: int
    descriptor: int | None = None


class FetchProcess:
    """Runs a process from its start to its end, by one `await run()`. Lives on the engine's loop.

    Args:
        setup: the first message to the process.
        on_notice: called with the key of storage options and a sentence, when a store has served nothing for a while.

    Attributes:
        ready: whether the process takes chunks.
        load: number of requests to the store that its chunks take.
        answers: number of its answers, of chunks brought or failed.
        silent_looks: how often `look` was called since its last message while it had chunks, or was not ready.
        report: its last report.
        share: share of a core that it took between its last two reports; 0 after a `look` without chunks.
        window: number of requests to the store that it may have at once, by its last message.
        retired: whether it was ended because it is not needed.
        reserved: whether it gets only the one chunk that is tried alone.
    """

    def __init__(self, setup: Setup, on_notice: Callable[[str, str], object]) -> None:
        self.ready = False
        self.load = 0
        self.answers = 0
        self.silent_looks = 0
        self.report = _NO_REPORT
        self.share = 0.0
        self.retired = False
        self.reserved = False
        self._crashed = False
        self._reported_at = 0.0
        self.window = setup.fetch.window_start
        self._counts = [0] * len(COUNTS)
        self._setup = setup
        self._on_notice = on_notice
        self._child: ConnectedChild | None = None
        # The socket to the child; None before the child was sent its setup, and after its end.
        self._socket: MessageSocket | None = None
        self._requests: dict[int, _Request] = {}
        self._datasets: dict[str, OpenDataset] = {}
        self._limits: FetchLimits | None = None
        self._ended = asyncio.Event()

    def __repr__(self) -> str:
        return f"FetchProcess(pid={self.pid}, {len(self._requests)} chunks, window={self.window})"

    @property
    def pid(self) -> int | None:
        """Process id, also after the process has ended; None before its start."""
        return None if self._child is None else self._child.pid

    @property
    def first_bytes(self) -> Histogram:
        """Times to the first byte, as of the last report."""
        return Histogram(self.report.first_byte_counts, self.report.first_byte_seconds)

    @property
    def counts(self) -> dict[str, int]:
        """Counts since its start, by the names of `COUNTS`, as of the last answer."""
        return dict(zip(COUNTS, self._counts, strict=True))

    def statistics(self) -> dict[str, int | float]:
        """Returns the values of `FetchStatistics`: levels as of the last report, counts as of the last answer."""
        names = FetchStatistics.__dataclass_fields__
        return {**{name: self.report.statistics.get(name, 0) for name in names}, **self.counts}

    # ------------------------------------------------------------ its life

    async def run(self, on_ready: Callable[[], None]) -> str:
        """Runs the process until it ends; returns how it ended, as text. Open requests fail with `ProcessEndedError`.

        Args:
            on_ready: called once, at the first message of the process, from which on it takes chunks.

        Raises:
            OSError, ConfigError: the process cannot be started, as `Child`.
        """
        loop = asyncio.get_running_loop()
        how = "not started"
        try:
            child = await in_thread(None, self._start)
            end = self._socket = child.socket
            loop.add_reader(end.fileno(), self._receive, on_ready)
            try:
                await self._ended.wait()
            finally:
                loop.remove_reader(end.fileno())
                self._socket = None
                self.ready = False
                end.close()
            # It ends by itself when its socket is closed, unless it is stopped; if it has not ended yet, it is killed.
            code = await in_thread(None, child.end)
            self._crashed = -code in _OWN_SIGNALS
            how = describe_exit(code, log="the engine's log")
            await in_thread(None, self._remove_temporary, child.pid)
            return how
        finally:
            requests, self._requests = self._requests, {}
            for request in requests.values():
                if not request.answered.done():
                    request.answered.set_exception(ProcessEndedError(how, crashed=self._crashed))

    def _start(self) -> ConnectedChild:
        """Starts the process and sends it the setup; runs on a thread of the loop's pool.

        The kernel ends the process with the thread that started it (`linux.end_with_parent`), and the threads of the
        pool last as long as the engine.
        """
        child = ConnectedChild(
            "streamer.engine.processes", numbers=[os.getpid()], environment=make_environment(_SETTINGS)
        )
        self._child = child
        try:
            child.socket.send(encode(self._setup))
        except BaseException:
            child.end()
            raise
        return child

    def _remove_temporary(self, pid: int) -> None:
        with suppress(OSError):  # the folder is gone, or read-only
            self._setup.open_folder().remove_temporary(pid)

    def end(self) -> None:
        """Makes `run` close the socket, wait for the process's end and return; idempotent."""
        self.ready = False
        self._ended.set()

    def retire(self) -> None:
        """Ends the process as `end` does, because it is not needed any more, and sets `retired`."""
        self.retired = True
        self.end()

    def look(self) -> None:
        """Adds 1 to `silent_looks` if the process has chunks or is not ready, otherwise sets it and `share` to 0.

        The pool calls it at intervals. Each message of the process sets `silent_looks` to 0, too.
        """
        self.silent_looks = self.silent_looks + 1 if self._requests or not self.ready else 0
        if not self._requests:
            self.share = 0.0

    # ------------------------------------------------------------ chunks

    async def bring(self, asked: Bring, dataset: OpenDataset, weight: int) -> SharedBytes:
        """Lets the process bring a chunk; returns its bytes, or a `SharedBytes` without a file if it was published.

        Args:
            asked: the message that names the chunk.
            dataset: the dataset with its present storage options.
            weight: number of requests to the store that the chunk takes.

        Raises:
            ProcessEndedError: the process has ended. Another one may bring the chunk.
            LocalError: the disk, the folder or the manifest is at fault.
            StreamerError: the chunk cannot be fetched.
        """
        if self._datasets.get(dataset.dataset) is not dataset:
            self._datasets[dataset.dataset] = dataset
            self._send(dataset)
        request = _Request(asyncio.get_running_loop().create_future(), weight)
        self._requests[asked.number] = request
        self.load += weight
        try:
            self._send(asked)
            answer = await self._answer(asked.number, request)
        finally:
            self.load -= weight
        if isinstance(answer, Brought):
            return self._make_bytes(asked.number, request, answer.length)
        if answer.local:
            raise LocalError(answer.message)
        raise answer.error()

    async def _answer(self, number: int, request: _Request) -> Answer:
        """Returns the answer to a request.

        If the caller is cancelled, the request is cancelled, and its answer is still awaited. So the process writes
        nothing after this has ended.
        """
        try:
            return await asyncio.shield(request.answered)
        except asyncio.CancelledError:
            self._send(Cancel(number))
            while not request.answered.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([request.answered])
            self._make_bytes(number, request, 0).close()
            raise

    def _make_bytes(self, number: int, request: _Request, length: int) -> SharedBytes:
        return SharedBytes(request.descriptor, length, lambda: self._send(GiveBack(number)))

    def limit(self, limits: FetchLimits) -> None:
        """Sends other limits if they have changed; does nothing before `on_ready`, in which the pool calls it again."""
        if self._socket is not None and limits != self._limits:
            self._limits = limits
            self._send(SetLimits(limits))

    def pace_anew(self) -> None:
        """Makes the process find out again which rates stores permit, and takes `by_chance` out of its report."""
        self.report = structs.replace(self.report, by_chance=False)
        self._send(PaceAnew())

    def _send(self, message: ToProcess) -> None:
        """Sends a message, unless the process has ended; ends a process that does not read."""
        if self._socket is not None:
            try:
                if not self._socket.send(encode(message)):
                    logger.debug("%r has ended and was not told", self)
            except BlockingIOError:
                # So many messages are unread only if the process has stopped reading.
                logger.warning("%r does not read", self)
                self.end()
            except OSError as error:
                logger.debug("%r was not told: %s", self, error)

    # ------------------------------------------------------------ what it says

    def _receive(self, on_ready: Callable[[], None]) -> None:
        """Handles all messages that have arrived; ends the process if its socket is closed or a message is wrong."""
        if self._socket is None:
            return
        try:
            for received in self._socket.receive_available(MAX_MESSAGE_BYTES, max_descriptors=1):
                if received is None:
                    self.end()
                    return
                raw, descriptors = received
                self.silent_looks = 0
                self._take(decode_to_engine(raw), descriptors[0] if descriptors else None)
                if not self.ready:
                    self.ready = True
                    on_ready()
                if self._ended.is_set():
                    return
        except (OSError, ValueError) as error:
            logger.warning("%r: %s", self, error)
            self.end()

    def _take(self, message: ToEngine, descriptor: int | None) -> None:
        """Handles one message; `descriptor` came with it."""
        match message:
            case Brought() | BringFailed():
                self.answers += 1
                self._counts = message.counts
                if isinstance(message, Brought):
                    self.window = message.window
                request = self._requests.pop(message.number)
                request.descriptor = descriptor
                request.answered.set_result(message)
            case Report():
                now = asyncio.get_running_loop().time()
                self.share = (message.cpu_seconds - self.report.cpu_seconds) / max(now - self._reported_at, 1e-3)
                self.report = message
                self.window = message.window
                self._reported_at = now
            case StoreNotice():
                self._on_notice(message.options_key, message.text)
