"""The recoders of an engine, each with one job at a time; more are started while jobs wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Self

import msgspec

from streamer.base.cgroup import usable_cores
from streamer.errors import ConfigError
from streamer.fetch.memory_budget import budget_bytes
from streamer.manifest.model import Chunk
from streamer.manifest.protocols import Examine, Examined
from streamer.recode.messages import Done, RecodeJob
from streamer.recode.process import Content, RecoderEndedError, RecoderProcess
from streamer.recode.results import Recoded, check_records, failure, read_examined
from streamer.recode.shared import KEPT_BYTES

# The other cores are for the trainer's workers, which decode every sample of every epoch.
_CORES_EACH = 4
_MOST = 8
# Another recoder takes half a second to start, so it is not worth it for a shorter wait.
_LEAST_WAIT_SECONDS = 0.5
_IDLE_SECONDS = 60.0
_TRIES = 2

Due = Callable[[], float]


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
    """A job without a recoder."""

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
        """Recodes a chunk; the records exist until the end of the context, and the content must not change before.

        Args:
            job: the job.
            chunk: origin of the bytes.
            content: its fetched bytes.
            due: time on the loop's clock at which its first reader needs it.

        Raises:
            RecodeError: two recoders failed; names object, range, format and reason.
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
        """Returns the idle recoder used last; otherwise a new one, if jobs have waited for long; otherwise None."""
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
