"""Recoders as real processes of an engine, which work, end, hang, refuse and take too much memory."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from streamer.engine.engine import Engine
from streamer.errors import RecodeError
from streamer.fetch.memory_budget import BufferPool, ChunkBuffer
from streamer.manifest.model import Chunk, Facts, ObjectRecord
from streamer.manifest.protocols import Examine
from streamer.manifest.table import Manifest
from streamer.recode import messages, pool
from streamer.recode.results import failure, whole_object
from streamer.recode.shared import SharedMemory
from tests.recoding.conftest import indexed

pytestmark = pytest.mark.process

WORDS = [[b"one", b"", b"three"], [b"four", b"five " * 1000]]


def fetched(chunk: Chunk) -> bytes:
    """Returns the bytes of a chunk's extents."""
    pieces = ((Path(extent.object.url.removeprefix("file://")), extent) for extent in chunk.extents)
    return b"".join(path.read_bytes()[extent.start : extent.stop] for path, extent in pieces)


def memory_files(pid: int) -> str:
    """Returns what a process has mapped and opened."""
    process = Path(f"/proc/{pid}")
    opened = (os.readlink(each) for each in (process / "fd").iterdir())
    return "\n".join([(process / "maps").read_text(), *opened])


def until(condition: Callable[[], bool]) -> None:
    """Waits until a condition holds; the test's own limit of time is the bound."""
    while not condition():
        time.sleep(0.01)


async def recoded(engine: Engine, manifest: Manifest, number: int = 0) -> list[bytes]:
    """Returns the samples of a chunk, straight from a recoder."""
    chunk = manifest.chunk(number)
    job = messages.RecodeJob.make(manifest, chunk)
    async with engine.recoders.recode(job, chunk, fetched(chunk), due=lambda: 0.0) as made:
        assert made.table.starts[-1] == len(made.content)
        return [bytes(made.content[start + 4 : stop]) for start, stop in pairwise(made.table.bounds.tolist())]


async def test_the_samples_of_all_blocks(engine: Engine, write: Callable[..., Path]) -> None:
    """A recoder returns the samples of all blocks of a chunk, one after the other, and takes the next chunk, too."""
    manifest = await indexed(engine, write(WORDS, [[b"six"]]))
    assert [await recoded(engine, manifest, number) for number in (0, 1)] == [[*WORDS[0], *WORDS[1]], [b"six"]]
    assert len(engine.recoders.pids) == 1
    assert (engine.recoders.count.recoded_chunks, engine.recoders.count.recode_failures) == (2, 0)


async def test_fetched_bytes_in_shared_memory(engine: Engine, write: Callable[..., Path], tmp_path: Path) -> None:
    """A recoder maps fetched bytes where they are, as does the one after it, and keeps no descriptor and no mapping."""
    samples = [[os.urandom(1 << 20), b"second", f"!kill {tmp_path}/done".encode()]]
    manifest = await indexed(engine, write(samples))
    chunk, buffers = manifest.chunk(0), BufferPool(1 << 30)
    job = messages.RecodeJob.make(manifest, chunk)
    for _ in range(3):
        buffer = ChunkBuffer(buffers, chunk.fetch_bytes, shared=True)
        buffer.view()[:] = fetched(chunk)
        assert buffer.descriptor is not None
        async with engine.recoders.recode(job, chunk, buffer.descriptor, due=lambda: 0.0) as made:
            records = pairwise(made.table.bounds.tolist())
            assert [bytes(made.content[start + 4 : stop]) for start, stop in records] == samples[0]
        [pid] = engine.recoders.pids
        held = await asyncio.to_thread(memory_files, pid)
        assert "streamer-recoder" in held
        assert "streamer-fetched" not in held
        buffer.clear()
    assert engine.recoders.count.recode_failures == 1


async def test_long_samples_arrive_through_the_engine(engine: Engine, write: Callable[..., Path]) -> None:
    """Long samples are fetched into memory that their recoder maps."""
    samples = [[os.urandom(1 << 20), b"second"]]
    manifest = await indexed(engine, write(samples))
    chunk = manifest.chunk(0)
    async with engine.fetchers.use_for_chunk(chunk, {}) as fetcher:
        with await fetcher.fetch(chunk, shared=True) as found:
            assert isinstance(found.content, int)
            async with engine.recoders.recode(
                messages.RecodeJob.make(manifest, chunk), chunk, found.content, due=lambda: 0.0
            ) as made:
                assert bytes(made.content[4 : 4 + (1 << 20)]) == samples[0][0]


async def test_a_process_knows_no_credentials(
    engine: Engine, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment of a recoder has names of programs and libraries, and no credentials."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    await recoded(engine, await indexed(engine, write(WORDS)))
    [pid] = engine.recoders.pids
    environment = await asyncio.to_thread(Path(f"/proc/{pid}/environ").read_bytes)
    assert b"PYTHONPATH" in environment
    assert b"hidden" not in environment


@pytest.mark.parametrize(
    "order", ["!kill", "!refuse", *(pytest.param(order, marks=pytest.mark.slow) for order in ("!raise", "!grow"))]
)
async def test_a_second_try(engine: Engine, write: Callable[..., Path], tmp_path: Path, order: str) -> None:
    """A chunk that fails once is recoded by a fresh process."""
    samples = [[b"first", f"{order} {tmp_path}/done".encode()]]
    manifest = await indexed(engine, write(samples))
    assert await recoded(engine, manifest) == samples[0]
    assert (engine.recoders.count.recoded_chunks, engine.recoders.count.recode_failures) == (1, 1)


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ("!kill", "its recoder ended: killed by SIGKILL"),
        pytest.param("!refuse", "this block is refused", marks=pytest.mark.slow),
        ("!raise", r"KeyError\('a mistake of the format'\)"),
        pytest.param("!grow", "it takes more memory", marks=pytest.mark.slow),
    ],
)
async def test_an_error_names_the_block(engine: Engine, write: Callable[..., Path], order: str, reason: str) -> None:
    """An error of a recoder names object, range, format and reason, and the next chunk is recoded all the same."""
    manifest = await indexed(engine, write([[b"good"], [order.encode()]], [[b"good"]]))
    with pytest.raises(RecodeError, match=rf"000\.blocks \[\d+, \d+\): {reason}.*\(format 'blocks'\)") as caught:
        await recoded(engine, manifest)
    first = 0 if order == "!kill" else manifest.chunk(0).fetch_bytes // 3
    assert int(str(caught.value.details["start"])) >= first
    assert await recoded(engine, manifest, 1) == [b"good"]


async def test_one_that_hangs(
    engine: Engine, write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recoder that hangs is killed after its time, and another one recodes the chunk."""
    monkeypatch.setattr(messages.RecodeJob, "most_seconds", property(lambda job: 3.0))
    samples = [[b"first", f"!stop {tmp_path}/done".encode()]]
    manifest = await indexed(engine, write(samples))
    assert await recoded(engine, manifest) == samples[0]


async def test_one_that_always_hangs(
    engine: Engine, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk whose recoders always hang raises a RecodeError that says for how long there was no answer."""
    monkeypatch.setattr(messages.RecodeJob, "most_seconds", property(lambda job: 2.0))
    manifest = await indexed(engine, write([[b"!stop"]]))
    with pytest.raises(RecodeError, match="no answer after 2 s"):
        await recoded(engine, manifest)


async def test_an_idle_one_that_was_killed(engine: Engine, write: Callable[..., Path]) -> None:
    """An idle recoder that was killed is replaced for the next chunk."""
    manifest = await indexed(engine, write(WORDS))
    await recoded(engine, manifest)
    [pid] = engine.recoders.pids
    os.kill(pid, signal.SIGKILL)
    assert await recoded(engine, manifest) == [*WORDS[0], *WORDS[1]]
    assert engine.recoders.pids != [pid]


async def test_a_second_recoder_for_those_that_wait(
    engine: Engine, write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second recoder starts once a job has waited for long while one is busy, and idle recoders end."""
    monkeypatch.setattr(engine.recoders, "most", 2)
    monkeypatch.setattr(pool, "_IDLE_SECONDS", 0.2)
    manifest = await indexed(engine, write([[f"!stop {tmp_path}/done".encode()]], [[b"second"]]))
    hanging = asyncio.create_task(recoded(engine, manifest, 0))
    assert await recoded(engine, manifest, 1) == [b"second"]
    assert len(engine.recoders.pids) >= 1
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    await asyncio.to_thread(until, lambda: not engine.recoders.pids)


async def test_it_ends_with_the_engine_in_mid_job(engine: Engine, write: Callable[..., Path], tmp_path: Path) -> None:
    """The kernel ends a recoder in mid-job when the other end of its socket is gone, whatever its format does then."""
    manifest = await indexed(engine, write([[f"!spin {tmp_path}/busy".encode()]]))
    chunk = manifest.chunk(0)
    job = messages.encode(messages.RecodeJob.make(manifest, chunk))
    await asyncio.to_thread(_leave_in_mid_job, job, fetched(chunk))


def _leave_in_mid_job(job: bytes, content: bytes) -> None:
    memory = SharedMemory("test")
    memory.write([job, content])
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    descriptors = (theirs.fileno(), memory.descriptor)
    command = [sys.executable, "-m", "streamer.recode", *map(str, descriptors)]
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, pass_fds=descriptors, env=environment) as process:
        theirs.close()
        ours.send(messages.encode(messages.StartJob(len(job))))
        until(lambda: os.lseek(memory.descriptor, 0, os.SEEK_CUR) > 0)
        ours.close()
        assert process.wait() == -signal.SIGIO
    memory.close()


def test_the_error_of_an_object_without_bytes_names_it() -> None:
    """The error of an object without bytes names it with an empty range.

    It was an IndexError, as of a table of annotations of 0 bytes.
    """
    record = ObjectRecord("s3://bucket/labels.parquet", 0, "")
    job = messages.RecodeJob.examine(Examine(record, "annotations", {}, Facts(), b""))
    error = failure(whole_object(record), job, "no Parquet", -1)
    assert error.message == "s3://bucket/labels.parquet [0, 0): no Parquet (format 'annotations')"
