"""Runs a recoder: makes records of one job after the other, until the engine closes the socket.

`recode/pool.py` starts it as `python -m streamer.recode SOCKET MEMORY`, with the numbers of two inherited descriptors.
If the socket closes in the middle of a job, the process is killed.
"""

from __future__ import annotations

import fcntl
import os
import resource
import sys
import time
import traceback
from collections.abc import Sequence

from streamer.base.message_socket import MessageSocket
from streamer.errors import StreamerError
from streamer.recode import messages, sandbox
from streamer.recode.messages import Answer, Done, RecodeJob, RecodeRefused, encode
from streamer.recode.shared import Buffer, SharedMemory, map_memory
from streamer.recode.work import BlockError, Recoders, recode

# Address space for the libraries that a format imports: pyarrow and numpy map 320 MiB (2026-11-23).
_LIBRARY_BYTES = 512 << 20


class Process:
    """Answers the jobs of the engine, in the recoder.

    Args:
        end: this process's end of the socket pair.
        memory: where the engine puts each job, and this process its records.
    """

    def __init__(self, end: MessageSocket, memory: SharedMemory) -> None:
        self._end = end
        self._memory = memory
        self._recoders = Recoders()
        # The sandbox forbids to open it later. It says how much address space this process uses.
        self._sizes = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        # The flag O_ASYNC makes any event on the socket send SIGIO to this process, which kills it. `serve` sets it
        # during a job, when the only possible event is that the engine has closed its end.
        fcntl.fcntl(end, fcntl.F_SETOWN, os.getpid())
        self._flags = fcntl.fcntl(end, fcntl.F_GETFL)

    def serve(self) -> None:
        """Answers jobs until the engine closes its end.

        Raises:
            msgspec.MsgspecError: a message or job cannot be decoded. The process ends with it.
        """
        while True:
            if (received := self._end.receive(messages.MOST_ANSWER_BYTES, max_descriptors=1)) is None:
                return
            frame, descriptors = received
            fcntl.fcntl(self._end, fcntl.F_SETFL, self._flags | os.O_ASYNC)
            answer = self._answer(messages.START.decode(frame).job_bytes, descriptors)
            fcntl.fcntl(self._end, fcntl.F_SETFL, self._flags)
            self._end.send(encode(answer))

    def _answer(self, job_bytes: int, descriptors: list[int]) -> Answer:
        """Recodes the job in the first `job_bytes` of the memory, and writes its records over it.

        Limits the address space of this process to what the job may take. Returns `RecodeRefused` for any error of the
        format.

        Args:
            job_bytes: length of the encoded job.
            descriptors: the file with the fetched bytes, which is closed; if empty, they follow the job in the memory.
        """
        job = messages.JOB.decode(self._memory.view(job_bytes))
        # The limit is what the process has mapped, the libraries that a format imports now, the fetched bytes, and
        # three times the maximum bytes of records: once in the shared memory, twice in this process.
        pages = int(os.pread(self._sizes, 200, 0).split()[0])
        limit = pages * resource.getpagesize() + _LIBRARY_BYTES + job.fetch_bytes + 3 * job.most_bytes
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (limit if hard < 0 else min(limit, hard), hard))
        started = time.process_time()
        if descriptors:
            try:
                content = map_memory(descriptors[0], job.fetch_bytes)
            finally:
                os.close(descriptors[0])
        else:
            # The fetched bytes are copied, because the records overwrite them.
            content = memoryview(bytes(self._memory.view(job_bytes + job.fetch_bytes)[job_bytes:]))
        end = 0

        def write(buffers: Sequence[Buffer]) -> None:
            nonlocal end
            end = self._memory.write(buffers, end)

        try:
            written, samples, codec = recode(job, self._recoders.find(job), content, write)
        except Exception as error:  # noqa: BLE001 - a format may raise anything; the engine is told
            return _refusal(error, job)
        return Done(written, samples, time.process_time() - started, codec)


def _refusal(error: BaseException, job: RecodeJob) -> RecodeRefused:
    """Makes the answer of an error; prints the traceback of one that is neither the package's nor lack of memory."""
    block = -1
    cause = error
    if isinstance(error, BlockError) and error.__cause__ is not None:
        block = error.block
        cause = error.__cause__
    if isinstance(cause, StreamerError):
        text = cause.message
    elif isinstance(cause, MemoryError):
        text = f"it takes more memory than a recoder has for records of up to {job.most_bytes} bytes"
    else:
        traceback.print_exception(cause)
        text = repr(cause)
    return RecodeRefused(type(cause).__name__, text[: messages.MOST_TEXT], block)


def main(arguments: list[str]) -> None:
    """Runs the process and ends it with exit code 0; writes no core file.

    Args:
        arguments: numbers of the descriptors of socket and memory.

    Raises:
        ConfigError, OSError: no file in memory can be made.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    end, memory = map(int, arguments)
    os.set_inheritable(memory, False)
    process = Process(MessageSocket.adopt(end), SharedMemory("memory", memory))
    # The result is ignored: `streamer doctor` tells what cannot be restricted.
    sandbox.enter()
    process.serve()
    # Nothing has to be cleaned up: the memory belongs to the engine.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
