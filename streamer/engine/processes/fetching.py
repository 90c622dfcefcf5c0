"""Fetches and publishes, in a fetch process, the chunks that the engine names. `__main__.py` runs it."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from streamer.base import linux
from streamer.base.concurrency import in_thread
from streamer.base.message_socket import MessageSocket
from streamer.cache.chunk_files import ChunkBytes, write_chunk
from streamer.engine.processes.messages import (
    MAX_MESSAGE_BYTES,
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
    decode_to_process,
    encode,
)
from streamer.errors import BrokenError, Discreet, ManifestError, StreamerError
from streamer.fetch import Fetched
from streamer.fetch.fetcher_set import FetcherSet
from streamer.fetch.statistics import COUNTS
from streamer.manifest.table import Manifest
from streamer.store import open_store

logger = logging.getLogger(__name__)

_FILE_THREADS = 2
_REPORT_SECONDS = 1.0
# A fetcher or manifest that was not used for so long is closed. Renewed credentials are other options, hence another
# fetcher, every few hours.
_IDLE_SECONDS = 300.0


class _NamedDataset(Discreet, msgspec.Struct):
    """A dataset as the engine has named it, whose manifest is opened when it is needed.

    Attributes:
        path: folder of the manifest.
        options: storage options.
        manifest: the open manifest. None means that it is not open.
        touched: whether it was used since the last look for idle ones.
    """

    path: Path
    options: Mapping[str, object]
    manifest: Manifest | None = None
    touched: bool = True

    def open(self) -> Manifest:
        """Returns the manifest, which is opened if it is not open.

        Raises:
            ManifestError: it is not there any more, or cannot be read.
        """
        self.touched = True
        if self.manifest is None:
            self.manifest = Manifest.open(self.path)
        return self.manifest


class Fetching:
    """Does the work of a fetch process until the engine closes its end of the socket. Lives on the process's loop.

    Args:
        end: end of the socket in this process. Its calls wait, so this process stops while the engine does not read.
        setup: the first message of the engine.
    """

    def __init__(self, end: MessageSocket, setup: Setup) -> None:
        self._end = end
        self._folder = setup.open_folder()
        self._setup = setup
        self._datasets: dict[str, _NamedDataset] = {}
        self._requests: dict[int, asyncio.Task[None]] = {}
        self._sent: dict[int, Fetched] = {}
        self._files = ThreadPoolExecutor(_FILE_THREADS, "streamer-cache")

    def __repr__(self) -> str:
        return f"Fetching({len(self._requests)} requests)"

    async def run(self) -> None:
        """Answers the engine and reports to it until the process ends; it does not return."""
        setup = self._setup
        self._fetchers = FetcherSet(
            setup.fetch,
            lambda options, url: open_store(url, options, client=setup.fetch.client, refuse_local=setup.refuse_local),
            lambda options_key, text: self._send(StoreNotice(options_key, text)),
        )
        async with self._fetchers, asyncio.TaskGroup() as self._tasks:
            asyncio.get_running_loop().add_reader(self._end.fileno(), self._receive)
            self._tasks.create_task(self._close_idle())
            busy = True
            while True:
                if busy or self._requests:
                    first_bytes = self._fetchers.first_bytes()
                    self._send(
                        Report(
                            statistics=self._fetchers.statistics(),
                            first_byte_counts=first_bytes.counts,
                            first_byte_seconds=first_bytes.sum_seconds,
                            cpu_seconds=time.process_time(),
                            window=self._window(),
                            by_chance=self._fetchers.refused_by_chance,
                        )
                    )
                # The engine may give memory back after the last answer, so that another report follows.
                busy = bool(self._requests or self._sent)
                await asyncio.sleep(_REPORT_SECONDS)

    # ------------------------------------------------------------ messages

    def _receive(self) -> None:
        """Handles all messages that have arrived; ends this process if the engine is gone."""
        for received in self._end.receive_available(MAX_MESSAGE_BYTES):
            if received is None:
                # The engine is gone. Unfinished files are removed by the next one.
                os._exit(0)
            message = decode_to_process(received[0])
            match message:
                case Bring():
                    self._requests[message.number] = self._tasks.create_task(self._answer_request(message))
                case GiveBack():
                    if (fetched := self._sent.pop(message.number, None)) is not None:
                        fetched.close()
                case Cancel():
                    if (task := self._requests.get(message.number)) is not None:
                        # The task begins before it is cancelled: otherwise it would not answer.
                        asyncio.get_running_loop().call_soon(task.cancel)
                case OpenDataset():
                    self._datasets[message.dataset] = _NamedDataset(Path(message.path), message.options)
                case SetLimits():
                    self._fetchers.limit(message.limits)
                case PaceAnew():
                    self._fetchers.pace_anew()

    def _send(self, message: ToEngine, *descriptors: int) -> None:
        self._end.send(encode(message), descriptors)

    # ------------------------------------------------------------ one chunk

    async def _answer_request(self, asked: Bring) -> None:
        """Brings a chunk and answers once, in every case; if memory runs out, the process ends instead."""
        try:
            await self._fetch(asked)
        except asyncio.CancelledError as error:
            # The engine has cancelled the request, and waits for the answer.
            self._fail(asked, error, local=False)
        except MemoryError:
            logger.exception("out of memory")
            os._exit(1)
        except StreamerError as error:
            self._fail(asked, error, local=isinstance(error, ManifestError))
        except OSError as error:
            self._fail(asked, error, local=True)
        except Exception as error:
            logger.exception("chunk %d of %s failed", asked.chunk, asked.dataset)
            broken = BrokenError(f"a fetch process failed over chunk {asked.chunk}: {error!r}; see the engine's log")
            self._fail(asked, broken, local=False)
        finally:
            del self._requests[asked.number]

    async def _fetch(self, asked: Bring) -> None:
        """Fetches a chunk, writes its file or sends its bytes, and answers; raises what goes wrong before."""
        dataset = self._datasets[asked.dataset]
        manifest = dataset.open()
        chunk = manifest.chunk(asked.chunk)
        async with self._fetchers.use(dataset.options) as fetcher:
            fetched = await fetcher.fetch(
                chunk, due=lambda: asked.due, owner=lambda: asked.owner, shared=not asked.publish
            )
        if asked.publish:
            with fetched:
                content = ChunkBytes(chunk.key, fetched.parts, manifest.sample_offsets(chunk.index), int(chunk.codec))
                length = await in_thread(self._files, write_chunk, content, self._folder)
            self._send(Brought(asked.number, length, self._counts(), self._window()))
        else:
            self._hand_out(asked.number, chunk.fetch_bytes, fetched)

    def _hand_out(self, number: int, length: int, fetched: Fetched) -> None:
        """Sends the fetched bytes as a file in memory.

        If their buffer is such a file, it is sent itself and kept until `GiveBack`. Otherwise a copy is sent.
        """
        brought = Brought(number, length, self._counts(), self._window())
        if isinstance(fetched.content, int):
            self._sent[number] = fetched
            self._send(brought, fetched.content)
            return
        descriptor = linux.memory_file("streamer-fetched")
        try:
            with fetched:
                os.writev(descriptor, fetched.parts)
            self._send(brought, descriptor)
        finally:
            os.close(descriptor)

    def _fail(self, asked: Bring, error: BaseException, *, local: bool) -> None:
        self._send(BringFailed.make(asked.number, error, self._counts(), local=local))

    # ------------------------------------------------------------ the rest

    def _counts(self) -> list[int]:
        counts = self._fetchers.counts()
        return [counts[name] for name in COUNTS]

    def _window(self) -> int:
        return self._fetchers.window or self._setup.fetch.window_start

    async def _close_idle(self) -> None:
        """Closes fetchers and manifests that are not used, until it is cancelled."""
        while True:
            await asyncio.sleep(_IDLE_SECONDS)
            self._fetchers.close_idle(())
            for dataset in self._datasets.values():
                if not dataset.touched:
                    dataset.manifest = None
                dataset.touched = False
