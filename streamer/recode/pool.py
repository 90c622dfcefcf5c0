"""The recoders of an engine, processes with one job at a time; more are started while jobs wait.

`engine.bring` has chunks recoded, the index whole objects examined.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Self, TypeAlias

import msgspec

from streamer.base.cgroup import usable_cores
from streamer.base.child import ConnectedChild, describe_exit, make_environment
from streamer.base.concurrency import in_thread
from streamer.errors import ConfigError
from streamer.fetch.memory_budget import budget_bytes
from streamer.manifest.model import Chunk
from streamer.manifest.protocols import Examine, Examined
from streamer.recode.messages import ANSWER, MOST_ANSWER_BYTES, Answer, Done, RecodeJob, StartJob, encode
from streamer.recode.results import Recoded, check_records, failure, read_examined
from streamer.recode.shared import KEPT_BYTES, Buffer, SharedMemory

# A recoder has one thread, because there are several; and no allocator that reserves address space in advance, which
# counts for the limit of it.
_SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "ARROW_IO_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "1",
}
# The other cores are for the trainer's workers, which decode every sample of every epoch.
_CORES_EACH = 4
_MOST = 8
# Another recoder takes half a second to start, so it is not worth it for a shorter wait.
_LEAST_WAIT_SECONDS = 0.5
_IDLE_SECONDS = 60.0
_TRIES = 2

Due = Callable[[], float]


# The bytes themselves, or the descriptor of a file that begins with them.
Content: TypeAlias = Buffer | int


class RecoderEndedError(Exception):
    """Raised for a recoder that has ended, hangs, or gives an answer without a meaning."""


class RecoderProcess:
    """A process, and the memory that it shares with the engine and that outlives it. One job at a time; on the loop."""

    def __init__(self) -> None:
        self.memory = SharedMemory("streamer-recoder")
        self._child: ConnectedChild | None = None

    def __repr__(self) -> str:
        return f"RecoderProcess(pid={self.pid})"

    @property
    def pid(self) -> int | None:
        """Pid of the process, or None if it is not running."""
        return None if self._child is None else self._child.pid

    async def run(self, job: RecodeJob, content: Content) -> Answer:
        """Runs a job, in a new process if there is none; raises RecoderEndedError without an answer."""
        encoded = encode(job)
        descriptors: list[int] = []
        if isinstance(content, int):
            descriptors.append(content)
            # A few hundred bytes: handing them to a thread costs more, as the loop then waits for the GIL.
            self.memory.write([encoded])
        else:
            await in_thread(None, self.memory.write, [encoded, content])
        try:
            if self._child is None:
                await in_thread(None, self._start)
            assert self._child is not None
            # It waits for a job, so that this one finds room.
            self._child.socket.send(encode(StartJob(len(encoded))), descriptors)
            async with asyncio.timeout(job.most_seconds):
                frame = await self._child.socket.wait_for_message(MOST_ANSWER_BYTES)
            if not frame:
                raise RecoderEndedError(await self.end())
            return ANSWER.decode(frame)
        except TimeoutError as error:
            await self.end()
            raise RecoderEndedError(f"no answer after {job.most_seconds:.0f} s") from error
        except OSError as error:
            raise RecoderEndedError(f"{await self.end()} ({error})") from error
        except msgspec.MsgspecError as error:
            await self.end()
            raise RecoderEndedError(f"an answer without a meaning: {error}") from error
        except asyncio.CancelledError:
            await self.end()
            raise

    def _start(self) -> None:
        """Starts the process: it gets no credentials, and only descriptors of its own socket and memory."""
        self._child = ConnectedChild(
            "streamer.recode", [self.memory.descriptor], environment=make_environment(_SETTINGS), folder="/"
        )

    async def end(self) -> str:
        """Ends the process, if there is one; says how it has ended. Idempotent."""
        child = self._child
        self._child = None
        if child is None:
            return "it could not be started"
        return describe_exit(await in_thread(None, child.end), log="the engine's log")

    async def trim(self) -> None:
        """Gives the memory of a large chunk back."""
        await in_thread(None, self.memory.trim)

    async def close(self) -> None:
        """Ends the process and gives the memory back; views of it stay valid."""
        await self.end()
        self.memory.close()


class RecodeStatistics(msgspec.Struct):
    """Counts since the start.

    Attributes:
        recoded_chunks: number of recoded chunks.
        recoded_bytes: their fetched bytes.
        record_bytes: bytes of their records.
        recode_cpu_seconds: CPU time of the recoders.
        recode_busy_seconds: time in which a recoder had a job, until its records were published.
        recode_failures: tries without a result.
    """

    recoded_chunks: int = 0
    recoded_bytes: int = 0
    record_bytes: int = 0
    recode_cpu_seconds: float = 0.0
    recode_busy_seconds: float = 0.0
    recode_failures: int = 0

    def add(self, job: RecodeJob, done: Done) -> None:
        """Counts one chunk."""
        self.recoded_chunks += 1
        self.recoded_bytes += job.fetch_bytes
        self.record_bytes += done.local_bytes
        self.recode_cpu_seconds += done.cpu_seconds


class _Waiting(msgspec.Struct):
    """A job without a recoder: `due` as in `recode`, the bytes that it takes, and since when it waits (seconds)."""

    due: Due
    job_bytes: int
    since: float
    granted: asyncio.Future[RecoderProcess]


class RecoderPool:
    """Starts recoders when they are needed, and ends them when they are not. Owned by the engine, on its loop.

    Args:
        memory_bytes: total bytes of the chunks that are being recoded; a larger one is recoded alone. None: as much as
            for those that are being fetched.
        most: number of recoders; None: a quarter of the cores.
    """

    def __init__(self, memory_bytes: int | None, most: int | None = None) -> None:
        self.count = RecodeStatistics()
        self._memory_bytes = memory_bytes or budget_bytes()
        self.most = most or min(_MOST, max(1, usable_cores() // _CORES_EACH))
        self._used_bytes = 0
        self._recoders: list[RecoderProcess] = []
        # The one used last is at the end; each has the timer that ends it.
        self._idle: dict[RecoderProcess, asyncio.TimerHandle] = {}
        self._waiting: list[_Waiting] = []
        self._timer: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"RecoderPool({len(self._recoders)} of {self.most} recoders, {len(self._waiting)} jobs wait)"

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for recoder in list(self._recoders):
            self._retire(recoder)
        while self._ending:
            await asyncio.wait(self._ending)

    @property
    def waiting(self) -> int:
        """Number of jobs that no recoder has taken yet."""
        return len(self._waiting)

    @property
    def pids(self) -> list[int]:
        """Pids of the running recoders."""
        return [recoder.pid for recoder in self._recoders if recoder.pid is not None]

    @asynccontextmanager
    async def recode(self, job: RecodeJob, chunk: Chunk, content: Content, *, due: Due) -> AsyncIterator[Recoded]:
        """Recodes a chunk, whose records exist until the end of the context. The content must not change before.

        Args:
            job: the job.
            chunk: origin of the bytes.
            content: its fetched bytes.
            due: time on the loop's clock at which its first reader needs it.

        Raises:
            RecodeError: two recoders failed. It names object, range, format and reason.
            ConfigError: the format, or a library of it, is not installed where the engine runs.
        """
        size = job.fetch_bytes + 2 * job.planned_bytes
        recoder = await self._take(due, size)
        begun = self._loop.time()
        try:
            done = await self._run(recoder, content, job, chunk)
            recoded = check_records(recoder.memory.view, done, job, chunk)
            self.count.add(job, done)
            # Released at the end, because an error would keep it with its traceback.
            with recoded.content:
                yield recoded
        finally:
            try:
                if size > KEPT_BYTES:
                    await recoder.trim()
            finally:
                self.count.recode_busy_seconds += self._loop.time() - begun
                self._give_back(recoder, size)

    async def examine(self, asked: Examine, content: bytes) -> Examined:
        """Recodes a whole object as one block, and counts its samples; raises ManifestError with a "reason"."""
        now = self._loop.time()
        with read_examined(asked) as chunk:
            async with self.recode(RecodeJob.examine(asked), chunk, content, due=lambda: now) as made:
                return made.answer(asked)

    async def _run(self, process: RecoderProcess, content: Content, job: RecodeJob, chunk: Chunk) -> Done:
        """Runs a job; tries once more in a new process."""
        failures = []
        for _ in range(_TRIES):
            try:
                answer = await process.run(job, content)
            except RecoderEndedError as error:
                failures.append(f"its recoder ended: {error}")
                block = -1
            else:
                if isinstance(answer, Done):
                    return answer
                await process.end()
                if answer.kind == ConfigError.__name__:
                    where = "" if "where the engine runs" in answer.message else " (where the engine runs)"
                    raise ConfigError(answer.message + where, field="format")
                failures.append(answer.message)
                block = answer.block
            self.count.recode_failures += 1
        raise failure(chunk, job, "; ".join(dict.fromkeys(failures)), block)

    # ------------------------------------------------------------ recoders

    async def _take(self, due: Due, job_bytes: int) -> RecoderProcess:
        waiting = _Waiting(due, job_bytes, self._loop.time(), self._loop.create_future())
        self._waiting.append(waiting)
        self._dispatch()
        try:
            return await waiting.granted
        except asyncio.CancelledError:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            elif not waiting.granted.cancelled():
                self._give_back(waiting.granted.result(), job_bytes)
            raise

    def _give_back(self, recoder: RecoderProcess, job_bytes: int) -> None:
        self._used_bytes -= job_bytes
        self._idle[recoder] = self._loop.call_later(_IDLE_SECONDS, self._retire, recoder)
        self._dispatch()

    def _dispatch(self) -> None:
        """Assigns recoders to the jobs that are due first, while there are some and their memory is free."""
        while self._waiting:
            first = min(self._waiting, key=lambda job: job.due())
            if self._used_bytes and self._used_bytes + first.job_bytes > self._memory_bytes:
                return
            if (recoder := self._free_recoder()) is None:
                return
            self._waiting.remove(first)
            self._used_bytes += first.job_bytes
            first.granted.set_result(recoder)

    def _free_recoder(self) -> RecoderProcess | None:
        """Returns the idle recoder used last, else a new one if jobs have waited for long, else None."""
        if self._idle:
            recoder, timer = self._idle.popitem()
            timer.cancel()
            return recoder
        if len(self._recoders) >= self.most:
            return None
        remaining = min(job.since for job in self._waiting) + _LEAST_WAIT_SECONDS - self._loop.time()
        if self._recoders and remaining > 0:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(remaining, self._dispatch)
            return None
        self._recoders.append(RecoderProcess())
        return self._recoders[-1]

    def _retire(self, recoder: RecoderProcess) -> None:
        self._recoders.remove(recoder)
        if (timer := self._idle.pop(recoder, None)) is not None:
            timer.cancel()
        task = self._loop.create_task(recoder.close())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
