"""Runs the recoders of an engine: processes with one job at a time, of which more are started while jobs wait.

The engine recodes chunks with it (`engine/bring.py`), the index of a dataset examines whole objects
(`engine/manifests/index_resources.py`). Beside it, `annotations.py` has files of annotations parsed, and
`recoded_chunks.py` recodes single chunks.
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

# A recoder has one thread, because there are several recoders. Its allocator reserves no address space in advance,
# because the address space of a recoder is limited.
_SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "ARROW_IO_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "1",
}
# There is one recoder for so many cores: the others are for the trainer's workers, which decode every sample of every
# epoch.
_CORES_EACH = 4
_MOST = 8
# Starting another recoder takes half a second, so jobs that have waited for less do not start one.
_LEAST_WAIT_SECONDS = 0.5
_IDLE_SECONDS = 60.0
_TRIES = 2

# Returns when a chunk is needed first, on the loop's clock (seconds). It is asked again at each choice of a job.
Due = Callable[[], float]

# Fetched bytes, or the descriptor of a file that begins with them.
Content: TypeAlias = Buffer | int


class RecoderEndedError(Exception):
    """Raised for a recoder that has ended, hangs, or sends an answer that cannot be decoded."""


class RecoderProcess:
    """A recoder as the engine sees it, with one job at a time; its methods run on the loop.

    The process is started for its first job, and again after it has ended. The memory is the same for all of them.

    Attributes:
        memory: the memory shared with the process.

    Raises:
        ConfigError, OSError: no file in memory can be made.
    """

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
        """Runs a job and returns its answer; starts the process if it does not run. Overwrites the shared memory.

        Args:
            job: the job.
            content: the fetched bytes.

        Raises:
            RecoderEndedError: the process cannot be started, there is no answer, none within `job.most_seconds`, or one
                that cannot be decoded. The process is ended then, and also if the call is cancelled.
            OSError: the shared memory cannot grow.
        """
        encoded = encode(job)
        descriptors: list[int] = []
        if isinstance(content, int):
            descriptors.append(content)
            # The job has a few hundred bytes. Writing them in a thread costs more, as the loop then waits for the GIL.
            self.memory.write([encoded])
        else:
            await in_thread(None, self.memory.write, [encoded, content])
        try:
            if self._child is None:
                await in_thread(None, self._start)
            assert self._child is not None
            # The process waits for a message, so that its socket has room for this one.
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
        except ValueError as error:
            await self.end()
            raise RecoderEndedError(f"an answer without a meaning: {error}") from error
        except asyncio.CancelledError:
            await self.end()
            raise

    def _start(self) -> None:
        """Starts the process without credentials, with the descriptors of its socket and memory only."""
        self._child = ConnectedChild(
            "streamer.recode", [self.memory.descriptor], environment=make_environment(_SETTINGS), folder="/"
        )

    async def end(self) -> str:
        """Kills the process, if there is one, and returns how it ended, as words of an error. Idempotent."""
        child = self._child
        self._child = None
        if child is None:
            return "it could not be started"
        return describe_exit(await in_thread(None, child.end), log="the engine's log")

    async def trim(self) -> None:
        """Frees the shared memory beyond `KEPT_BYTES`."""
        await in_thread(None, self.memory.trim)

    async def close(self) -> None:
        """Kills the process and closes the memory; views of it stay valid."""
        await self.end()
        self.memory.close()


class RecodeStatistics(msgspec.Struct):
    """Counts since the engine started, for its page of metrics.

    Attributes:
        recoded_chunks: number of recoded chunks. Objects examined and files of annotations count, too.
        recoded_bytes: their fetched bytes.
        record_bytes: bytes of their records and tables.
        recode_cpu_seconds: CPU time that their jobs took.
        recode_busy_seconds: time for which jobs had a recoder, until their records were used.
        recode_failures: tries without a result, unless a library is missing; a job has up to two.
    """

    recoded_chunks: int = 0
    recoded_bytes: int = 0
    record_bytes: int = 0
    recode_cpu_seconds: float = 0.0
    recode_busy_seconds: float = 0.0
    recode_failures: int = 0

    def add(self, job: RecodeJob, done: Done) -> None:
        """Counts one recoded chunk."""
        self.recoded_chunks += 1
        self.recoded_bytes += job.fetch_bytes
        self.record_bytes += done.local_bytes
        self.recode_cpu_seconds += done.cpu_seconds


class _Waiting(msgspec.Struct):
    """A job that waits for a recoder.

    Attributes:
        due: returns when the job is needed, on the loop's clock.
        job_bytes: memory that it takes.
        since: when it began to wait, on the loop's clock.
        granted: gets its recoder.
    """

    due: Due
    job_bytes: int
    since: float
    granted: asyncio.Future[RecoderProcess]


class RecoderPool:
    """Starts recoders while jobs wait, and ends them after a minute without a job. Owned by the engine, on its loop.

    It is an async context manager, which ends all recoders at its end.

    Args:
        memory_bytes: memory for all chunks that are being recoded; a larger chunk is recoded alone. None means as much
            as chunks that are being fetched may take (`budget_bytes`).
        most: maximum number of recoders. None means a quarter of the usable cores, between 1 and 8.

    Attributes:
        count: counts of all jobs.
        most: maximum number of recoders.
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
        """Yields a recoded chunk, whose records exist until the end of the context.

        Waits first until a recoder and the memory are free. Of the waiting jobs, the one that is due first goes first.

        Args:
            job: the job.
            chunk: origin of the bytes, for errors.
            content: the fetched bytes, which must not change before the chunk is yielded.
            due: returns when its first reader needs it, on the loop's clock.

        Raises:
            RecodeError: the job failed twice, the second time in a new process, or its result is not as indexed. The
                error names object, range, format and reason.
            ConfigError: the format, or a library of it, is not installed where the engine runs.
            OSError: the shared memory cannot grow.
        """
        size = job.fetch_bytes + 2 * job.planned_bytes
        recoder = await self._take(due, size)
        begun = self._loop.time()
        try:
            done = await self._run(recoder, content, job, chunk)
            recoded = check_records(recoder.memory.view, done, job, chunk)
            self.count.add(job, done)
            # The view is released at the end: the traceback of an error would keep it, and with it the memory.
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
        """Recodes a whole object as one block, and returns what the index asked for.

        Args:
            asked: the object, and whether its records are wanted.
            content: all bytes of the object.

        Raises:
            ManifestError: the object cannot be decoded; has a detail "reason".
            ConfigError, OSError: as `recode`.
        """
        now = self._loop.time()
        with read_examined(asked) as chunk:
            async with self.recode(RecodeJob.examine(asked), chunk, content, due=lambda: now) as made:
                return made.answer(asked)

    async def _run(self, process: RecoderProcess, content: Content, job: RecodeJob, chunk: Chunk) -> Done:
        """Runs a job; if it fails, tries once more in a new process.

        Raises:
            RecodeError, ConfigError, OSError: as `recode`. Only what would be a RecodeError is tried again.
        """
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
        """Waits for a recoder and for the memory of a job; the caller returns both by `_give_back`."""
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
        """Gives recoders to waiting jobs, the first due first, until no recoder or not enough memory is free."""
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
        """Returns the idle recoder used last, else a new one, or None if there may be no further one yet.

        The first one is new at once; another one when a job has waited for `_LEAST_WAIT_SECONDS`, for which a timer is
        set.
        """
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
        """Takes a recoder out of the pool, and ends it in a task of its own."""
        self._recoders.remove(recoder)
        if (timer := self._idle.pop(recoder, None)) is not None:
            timer.cancel()
        task = self._loop.create_task(recoder.close())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
