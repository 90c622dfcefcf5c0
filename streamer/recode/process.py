"""One recoder from the side of the engine."""

from __future__ import annotations

import asyncio
from typing import TypeAlias

import msgspec

from streamer.base.child import ConnectedChild, describe_exit, make_environment
from streamer.base.concurrency import in_thread
from streamer.recode.messages import ANSWER, MOST_ANSWER_BYTES, Answer, RecodeJob, StartJob, encode
from streamer.recode.shared import Buffer, SharedMemory

# A recoder has one thread, because there are several; and no allocator that reserves address space in advance, which
# counts for the limit of it.
_SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "ARROW_IO_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "1",
}


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
