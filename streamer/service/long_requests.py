"""Answers requests that take time: for manifests, bytes of single samples, shared caches, and sessions to be proved.

`server.py` owns all of it. Requests are bounded for each client, and in bytes for all clients together.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.base.extras import require_modules
from streamer.base.system_limits import limit_error
from streamer.base.user_urls import take_logins
from streamer.engine.datasets import Dataset
from streamer.engine.engine import Engine
from streamer.errors import BrokenError, ConfigError, ProtocolError, ServiceError, StreamerError
from streamer.fetch.fair_gate import FairGate, WaitQueue
from streamer.service.admission import MAX_LONG_REQUESTS, MAX_READ_BYTES, MAX_REQUEST_URLS, ServiceLimits, SoleUser
from streamer.service.client_connection import ClientConnection
from streamer.store.addresses.patterns import MAX_EXPANDED_LETTERS, MAX_URLS, count_urls
from streamer.wire.messages import (
    Advance,
    CacheShared,
    Content,
    Extend,
    GetManifest,
    IndexProgress,
    ManifestReady,
    Part,
    Read,
    Reject,
    ShareCache,
)
from streamer.wire.store_options import NO_OPTIONS, StoreOptions

if TYPE_CHECKING:
    from streamer.peers.by_job import JobPeers


logger = logging.getLogger(__name__)

# A client that has not read the answer to a read after this time has stopped: 64 MiB through a unix socket take 0.1 s.
ANSWER_SECONDS = 10.0
# Bytes of the messages that are kept for all sessions whose proof still runs.
_MAX_WAITING_BYTES = 64 << 20

Step: TypeAlias = Extend | Advance | Reject


# Sends a client an error as the answer to the request of this number.
Fail = Callable[[ClientConnection, StreamerError, int], None]


class ClientRequests(msgspec.Struct):
    """The unanswered requests of one client.

    Attributes:
        tasks: the tasks that answer them, and whether each goes on when the client has gone.
        reading: held by the one read that is being answered.
        warned_about_options: whether the log has said that this client's storage options are not used.
    """

    tasks: dict[asyncio.Task[None], bool] = msgspec.field(default_factory=dict)
    reading: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)
    warned_about_options: bool = False


class LongRequests:
    """Answers the long requests of all clients of one engine. Lives on its loop.

    Args:
        engine: the engine.
        tasks: runs the answers.
        limits: bounds for all clients together.
        fail: sends a client an error as the answer to a request.

    Attributes:
        sole_user: the user that is served, if the service has no [[datasets]].
    """

    def __init__(self, engine: Engine, tasks: asyncio.TaskGroup, limits: ServiceLimits, fail: Fail) -> None:
        self._fail = fail
        self._engine = engine
        self._tasks = tasks
        self._limits = limits
        self._request_bytes = 0
        self._answers = FairGate(limits.answer_bytes)
        self._running: set[asyncio.Task[None]] = set()
        # The tasks of clients that have gone, in the order in which they were left.
        self._left: dict[asyncio.Task[None], None] = {}
        self._sharing = CacheSharing(engine, tasks)
        self.sole_user = SoleUser(applies=engine.fetchers.allowlist.refuse_local)

    def __repr__(self) -> str:
        return (
            f"LongRequests({len(self._running)} running, request_bytes={self._request_bytes}, answers={self._answers})"
        )

    def start(
        self, client: ClientConnection, requests: ClientRequests, request: GetManifest | Read | ShareCache
    ) -> None:
        """Starts a task that answers a request, and has it among the client's `requests` until it is answered.

        Raises:
            ProtocolError: the client has too many requests at once. All other errors are sent to the client, and those
                that are found at once start no task.
        """
        try:
            size = _count_letters(request.urls) if isinstance(request, GetManifest) else 0
        except ConfigError as error:
            self._fail(client, error, request.request)
            return
        if len(requests.tasks) >= MAX_LONG_REQUESTS:
            raise ProtocolError(f"more than {MAX_LONG_REQUESTS} long requests at once")
        if self._request_bytes + size > max(size, self._limits.request_bytes):
            busy = ServiceError(f"{self._request_bytes} bytes of urls are in requests already; try again later")
            client.fail(busy, request=request.request)
            return
        answer: Callable[[], Awaitable[None]]
        match request:
            case GetManifest():
                answer = partial(self._manifest, client, requests, request)
            case Read():
                answer = partial(self._read, client, requests, request)
            case ShareCache():
                answer = partial(self._share, client, requests, request)
        self._request_bytes += size
        task = self._tasks.create_task(self._send_answer(client, request.request, answer))
        self._running.add(task)
        requests.tasks[task] = isinstance(request, GetManifest) and request.build

        def forget(task: asyncio.Task[None]) -> None:
            self._running.discard(task)
            self._left.pop(task, None)
            requests.tasks.pop(task, None)
            self._request_bytes -= size

        task.add_done_callback(forget)

    def leave(self, requests: ClientRequests) -> None:
        """Cancels the requests of a client that has gone, except those that build a manifest.

        A manifest is built further for a client that asks again. Since a client can ask and go again and again, only
        the latest `MAX_LONG_REQUESTS` of these requests, of all clients, go on.
        """
        for task, goes_on in list(requests.tasks.items()):
            if goes_on:
                self._left[task] = None
            else:
                task.cancel()
        while len(self._left) > MAX_LONG_REQUESTS:
            first = next(iter(self._left))
            del self._left[first]
            first.cancel()

    async def finish(self, seconds: float) -> None:
        """Waits at most `seconds` for running requests, then cancels them (clients send them to the next engine).

        It also ends the sharing of the cache.
        """
        if self._running:
            await asyncio.wait(self._running, timeout=seconds)
        for task in self._running:
            task.cancel()
        self._sharing.close()

    def choose_options(self, client: ClientConnection, requests: ClientRequests, sent: StoreOptions) -> StoreOptions:
        """Returns the storage options to use for a client: those that it sent, or none if the service has its own.

        Logs a warning once for each client whose options are not used. The client's user may become the one that is
        served (`SoleUser.check_request`).

        Raises:
            ConfigError: the options are not a JSON mapping.
            AccessDeniedError: this service reads for another user.
        """
        self.sole_user.check_request(client.credentials)
        if sent and self._engine.fetchers.allowlist.restricted:
            if not requests.warned_about_options:
                requests.warned_about_options = True
                logger.warning("%s sends storage_options: not used, this service has its own", client)
            return NO_OPTIONS
        sent.check()
        return sent

    # ------------------------------------------------------------ inside

    async def _send_answer(self, client: ClientConnection, number: int, answer: Callable[[], Awaitable[None]]) -> None:
        """Runs `answer`, and sends any error of it to the client as that of the request with this number."""
        try:
            await answer()
        except StreamerError as error:
            self._fail(client, error, number)
        except Exception as error:
            logger.exception("request %d of %s failed", number, client)
            broken = BrokenError(f"the engine failed over a request: {error!r}; see its log")
            self._fail(client, limit_error(error) or broken, number)

    async def _manifest(self, client: ClientConnection, requests: ClientRequests, request: GetManifest) -> None:
        """Finds or builds a manifest; sends progress meanwhile, then its digest and notes."""

        def progress(text: str, done: int, total: int) -> None:
            client.send(IndexProgress(request.request, text, done, total))

        sent = self.choose_options(client, requests, request.options)
        # Earlier clients leave logins in the urls.
        (manifest, *urls), options = take_logins((request.manifest, *request.urls), sent.mapping)
        restricted = self._engine.fetchers.allowlist.restricted
        wanted = msgspec.structs.replace(
            request, urls=urls, manifest=manifest, options=NO_OPTIONS if restricted else StoreOptions.make(options)
        )
        digest = await self._engine.manifest(wanted, progress)
        notes = await self._engine.manifests.notes(wanted, digest)
        client.send(ManifestReady(request.request, digest, notes))

    async def _read(self, client: ClientConnection, requests: ClientRequests, request: Read) -> None:
        """Sends bytes of a chunk, one request of a client at a time. They stay reserved until the client has them."""
        size = request.stop - request.start
        if not 0 <= size <= MAX_READ_BYTES:
            raise ServiceError(f"a read of {size} bytes; 0 to {MAX_READ_BYTES} are possible")
        options = self.choose_options(client, requests, request.options)
        async with requests.reading:
            await self._answers.acquire(WaitQueue(asyncio.get_running_loop().time), size)
            try:
                span = None if request.boundaries else (request.start, request.stop)
                content = await self._engine.read(request.dataset, options, request.chunk, span)
                client.send(Content(request.request, content))
                del content
                await client.wait_until_read(ANSWER_SECONDS)
            finally:
                self._answers.release(size)

    async def _share(self, client: ClientConnection, requests: ClientRequests, request: ShareCache) -> None:
        options = self.choose_options(client, requests, request.options)
        client.send(CacheShared(request.request, await self._sharing.share(request, options)))


def _count_letters(urls: Sequence[str]) -> int:
    """Returns the letters of all urls that a request names; one with braces counts as all that it stands for.

    Raises:
        ConfigError: there are too many urls, or they are too long together.
    """
    if len(urls) > MAX_REQUEST_URLS:
        raise ConfigError(
            f"{len(urls):,} urls in one request; at most {MAX_REQUEST_URLS:,}: name a prefix or a glob instead of "
            "single objects",
            field="url",
        )
    count = 0
    letters = 0
    for url in urls:
        more, size = count_urls(url)
        count = count + more
        letters = letters + size
    if count > max(MAX_URLS, len(urls)) or letters > MAX_EXPANDED_LETTERS:
        raise ConfigError(
            f"the braces of {len(urls):,} urls stand for {count:,} urls of {letters:,} letters; a request names "
            f"at most {MAX_URLS:,}, of {MAX_EXPANDED_LETTERS >> 20} MiB: use * for whatever is there",
            field="url",
        )
    return letters


class SessionProofs:
    """Makes sessions wait until it is proved that their clients may read, and keeps the messages for them meanwhile.

    Lives on the engine's loop.

    Args:
        prepare: prepares a part, or raises why the client may not read it (`Preparation` of `engine/datasets.py`).
        tasks: runs the requests to the store.
    """

    def __init__(self, prepare: Callable[[Part], Awaitable[None]], tasks: asyncio.TaskGroup) -> None:
        self._prepare = prepare
        self._tasks = tasks
        self._waiting: dict[tuple[ClientConnection, int], list[Step]] = {}
        self._asking: dict[tuple[ClientConnection, int], asyncio.Task[None]] = {}
        self._bytes = 0

    def __repr__(self) -> str:
        return f"SessionProofs({len(self._waiting)} sessions wait)"

    def count(self, client: ClientConnection) -> int:
        """Returns how many sessions of a client wait."""
        return sum(owner is client for owner, _ in self._waiting)

    def waits(self, client: ClientConnection, session: int) -> bool:
        """Whether this session of the client waits."""
        return (client, session) in self._waiting

    def start(
        self,
        client: ClientConnection,
        session: int,
        parts: Sequence[Part],
        opened: Callable[[list[Step]], None],
        failed: Callable[[StreamerError], None],
    ) -> None:
        """Starts a task that prepares all parts of a session, and asks their stores whether the client may read.

        Then it calls `opened` with the messages for the session that have come meanwhile, or `failed` with the error.
        It calls neither if the session was dropped.
        """
        key = (client, session)
        self._waiting[key] = []
        proof = self._prove(key, parts, opened, failed)
        self._asking[key] = self._tasks.create_task(proof, name="prove a right")

    def keep(self, client: ClientConnection, step: Step) -> None:
        """Keeps a message for a session that waits.

        Raises:
            ServiceError: the messages for all such sessions, with this one, take too much memory. It is kept all the
                same, until the session is dropped.
        """
        self._bytes += _bytes(step)
        self._waiting[client, step.session].append(step)
        if self._bytes > _MAX_WAITING_BYTES:
            raise ServiceError(f"{self._bytes} bytes of schedules wait for their stores; try again later")

    def drop(self, client: ClientConnection, session: int | None = None) -> None:
        """Cancels the proof of a session, or of all sessions of the client if None is given; ignores unknown ones."""
        for key in list(self._waiting):
            if key[0] is client and session in (None, key[1]):
                self._asking[key].cancel()  # else a client that comes and goes could have any number of them
                self._take(key)

    def _take(self, key: tuple[ClientConnection, int]) -> list[Step] | None:
        """Forgets a session that waits, and returns its messages; None if it does not wait."""
        steps = self._waiting.pop(key, None)
        self._asking.pop(key, None)
        self._bytes -= sum(map(_bytes, steps or ()))
        return steps

    async def _prove(
        self,
        key: tuple[ClientConnection, int],
        parts: Sequence[Part],
        opened: Callable[[list[Step]], None],
        failed: Callable[[StreamerError], None],
    ) -> None:
        """Proves one session; see `start`."""
        waiting = self._waiting[key]
        error: StreamerError | None = None
        try:
            for part in parts:
                try:
                    await self._prepare(part)
                except StreamerError as refusal:
                    raise (refusal.of_member(part.name) if part.name else refusal) from refusal
        except StreamerError as refusal:
            error = refusal
        except Exception as failure:
            # An unexpected error, perhaps over a client's options, would end the engine.
            logger.exception("the right to session %d of %s was not proven", key[1], key[0])
            error = BrokenError(f"the engine failed over a session: {failure!r}; see its log")
        if self._waiting.get(key) is not waiting:  # closed meanwhile, perhaps opened again
            return
        steps = self._take(key) or []
        if error is None:
            try:
                opened(steps)
                return
            except Exception as failure:
                logger.exception("session %d of %s was not opened", key[1], key[0])
                error = BrokenError(f"the engine failed over a session: {failure!r}; see its log")
        failed(error)


def _bytes(step: Step) -> int:
    """Returns about how many bytes of memory a message takes."""
    parts = (step.chunk, step.first, step.last, step.passes) if isinstance(step, Extend) else ()
    return 200 + sum(map(len, parts))


class CacheSharing:
    """Shares the cache of an engine with the other engines of its job; imports `peers/` when a client asks for it."""

    def __init__(self, engine: Engine, tasks: asyncio.TaskGroup) -> None:
        self._engine = engine
        self._tasks = tasks
        self._peers: JobPeers | None = None

    def __repr__(self) -> str:
        return f"CacheSharing({self._peers!r})"

    async def share(self, request: ShareCache, options: StoreOptions) -> str:
        """Shares the cache with the engines of the request; returns the address at which this one answers them.

        Raises:
            ConfigError: this engine is a service, cannot listen on that host, or the extra `peers` is not installed.
            ManifestError, AccessDeniedError: the engine does not have the dataset, or does not serve it.
            ProtocolError: lanes and readers of the request do not belong together.
        """
        if self._engine.config.grace_seconds is None:
            raise ConfigError(
                'share_caches="auto" is for engines that the job starts itself; this one is a service, which shares '
                "its cache as [peers] members of its configuration says: leave share_caches= out",
                field="share_caches",
            )
        require_modules('share_caches="auto"', "peers", "aiohttp", "pycurl", field="share_caches")
        from streamer.peers.by_job import JobPeers  # Here, so that an engine without peers does not import it.
        from streamer.peers.homes import LaneReaders, PeerMember

        try:
            # It must be an address, since a name would have to be resolved.
            host = str(ipaddress.ip_address(request.host))
        except ValueError as error:
            raise ConfigError(f"{request.host!r} is not an IP address of this machine", field="peers") from error
        # The dataset is opened before other engines ask for its chunks.
        dataset = self._engine.datasets.get(request.dataset, options.mapping)
        members = [PeerMember(one.id, one.address, one.limit_bytes) for one in request.sharers]
        readers = {}
        if request.lanes:
            lanes = _read_lanes(request, dataset)
            readers[request.name] = LaneReaders(dataset.manifest.chunk_words, lanes, request.readers, request.former)
        self._peers = self._peers or JobPeers(self._engine, self._tasks)
        return await self._peers.share(request.token, host, members, readers)

    def close(self) -> None:
        """Ends the sharing at the end of the engine; does nothing if there was none."""
        if self._peers is not None:
            self._peers.close()


def _read_lanes(request: ShareCache, dataset: Dataset) -> NDArray[np.int64]:
    """Returns the lane of each chunk, int64 (chunks,), -1 for none; ProtocolError if the columns do not match."""
    if len(request.lanes) != 2 * dataset.manifest.chunks:
        raise ProtocolError(f"{len(request.lanes)} bytes are not the lanes of {dataset.manifest.chunks} chunks")
    lanes = np.frombuffer(request.lanes, "<i2").astype(np.int64)
    count = len(request.readers)
    shares = [share for lane in (*request.readers, *request.former) for share in lane]
    if (
        len(request.former) != count
        or not all(request.readers)
        or not -1 <= int(lanes.min()) <= int(lanes.max()) < count
        or any(member >= len(request.sharers) or share < 1 for member, share in shares)
    ):
        raise ProtocolError(f"the readers of {count} lanes do not belong to the lanes of the chunks")
    return lanes
