"""Brings chunks from peers, or from the store if they are late or have none.

`peers/group.py` makes a `PeerSource`, which the engine then asks for each chunk that it needs (`engine/bring.py`). It
asks the peer that `choose_peer` names. `race` asks the store as well if the peer is late. `check_file` checks what a
peer has sent before anything of it is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.base.concurrency import in_thread
from streamer.cache.chunk_files import sample_checksums
from streamer.engine.bring import Fetch, Publisher, StoreSource
from streamer.engine.datasets import Dataset
from streamer.engine.processes.process import SharedBytes
from streamer.errors import IntegrityError
from streamer.fetch.fetcher import Fetched
from streamer.formats.chunkfile import HEADER_BYTES, ChunkHeader, RecordTable
from streamer.peers.client import Asked, PeerClient, Refusal
from streamer.peers.homes import Homes, PeerMember

logger = logging.getLogger(__name__)


class SourceCounts(msgspec.Struct):
    """Counts where chunks came from since the start.

    Attributes:
        peer_chunks: number of chunks that came from peers.
        peer_bytes: bytes of them as the cache stores them, without header and checksums.
        peer_hedge_losses: number of chunks that came from the store because the peer was late.
    """

    peer_chunks: int = 0
    peer_bytes: int = 0
    peer_hedge_losses: int = 0


class PeerSource:
    """Asks peers for chunks, or the store, and publishes them in the cache. On the engine's loop.

    Args:
        store: fetches chunks from the store.
        publisher: writes chunks into the cache.
        client: asks peers.
        homes: homes for the present members.

    Attributes:
        count: where chunks came from.
    """

    def __init__(self, store: StoreSource, publisher: Publisher, client: PeerClient, homes: Homes) -> None:
        self.count = SourceCounts()
        self._store = store
        self._publisher = publisher
        self._client = client
        self.use(homes)

    def __repr__(self) -> str:
        return f"PeerSource({self._homes!r}, {self.count!r})"

    def use(self, homes: Homes) -> None:
        """Asks by these homes from now on; chunks may still be where their homes were, so they are looked for there."""
        self._homes = homes
        self._found = FoundChunks()

    async def bring(self, fetch: Fetch) -> None:
        """Fetches a chunk from a peer or the store, and publishes it (`Bring` in `engine/bring.py`).

        Raises:
            StreamerError: the chunk cannot be had from either, or not be written.
        """
        late = asyncio.Event()
        digest = fetch.dataset.manifest.digest
        found = self._found
        ask = choose_peer(
            self._homes.order(fetch.key),
            self._homes.me,
            self._client.is_up,
            lambda member: found.may_have(member, digest),
            for_peer=not fetch.waiters,
        )
        brought = None
        if ask is not None:
            brought = await race(self._ask(fetch, ask, late), late, lambda: self._store.fetch(fetch))
        if brought is None:
            await self._store.bring(fetch)
            return
        with contextlib.closing(brought):
            if isinstance(brought, Received):
                await self._publisher.publish_samples(fetch, brought.content, brought.offsets)
                self.count.peer_chunks += 1
                self.count.peer_bytes += len(brought.content)
            else:
                self.count.peer_hedge_losses += 1
                await self._publisher.publish(fetch, brought)

    async def _ask(self, fetch: Fetch, ask: PeerChoice, late: asyncio.Event) -> Received | None:
        """Asks a peer for a chunk and checks its file; None if the peer sends none, or a wrong one (a warning)."""
        digest = fetch.dataset.manifest.digest
        found = self._found
        asked = Asked(
            key=fetch.key,
            dataset=digest,
            length=int(fetch.dataset.file_bytes[fetch.chunk]),
            exact=not fetch.dataset.manifest.recoded,
            fetch=ask.fetch,
            due=fetch.due,
            owner=fetch.owner,
        )
        answer = await self._client.fetch_chunk(ask.member, asked, late)
        if not ask.fetch:
            found.record(ask.member, digest, not isinstance(answer, Refusal))
        if isinstance(answer, Refusal):
            return None
        where = f"chunk {fetch.chunk} from peer {ask.member.address}"
        try:
            return await in_thread(None, check_file, answer, fetch.dataset, fetch.chunk, where)
        except BaseException as error:
            answer.close()
            if not isinstance(error, IntegrityError):
                raise
            self._client.reject(ask.member)
            logger.warning("%s; it is read from the store", error)
            return None


# ---------------------------------------------------------------- the peer, and the store when it is late

FromStore = Fetched | SharedBytes


async def race(
    peer: Coroutine[Any, Any, Received | None], late: asyncio.Event, store: Callable[[], Coroutine[Any, Any, FromStore]]
) -> Received | FromStore | None:
    """Runs a request to a peer; if it is late, also one to the store, and takes what comes first.

    Args:
        peer: asks the peer. It returns None if the peer sends nothing.
        late: set by `peer` when the store should be asked as well.
        store: asks the store. It is called at most once.

    Returns:
        What the peer or the store sent. None if the peer sent nothing and was not late: the store was not asked then.

    Raises:
        StreamerError: the store failed, and the late peer sent nothing.
    """
    asked = asyncio.create_task(peer)
    is_late = asyncio.create_task(late.wait())
    fetched: asyncio.Task[FromStore] | None = None
    winner: asyncio.Task[Received | None] | asyncio.Task[FromStore] | None = None
    try:
        await asyncio.wait({asked, is_late}, return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            winner = asked
            return asked.result()
        fetched = asyncio.create_task(store())
        await asyncio.wait({asked, fetched}, return_when=asyncio.FIRST_COMPLETED)
        if asked.done() or fetched.exception() is not None:
            winner = asked
            if (brought := await asked) is not None:
                return brought
        winner = fetched
        return await fetched
    finally:
        is_late.cancel()
        losers: list[asyncio.Task[Any]] = [task for task in (asked, fetched) if task is not None and task is not winner]
        for task in losers:
            task.cancel()
        # A loser may have ended with a chunk, whose memory is given back.
        for result in await asyncio.gather(*losers, return_exceptions=True):
            if result is not None and not isinstance(result, BaseException):
                result.close()


# ---------------------------------------------------------------- which peer is asked

# Once a second member has not had this many chunks in a row, only every 32nd is looked for there. So a cold start costs
# next to nothing, and chunks are found that have another home since the members changed.
_TRIES = 8
_PAUSE = 32


class PeerChoice(msgspec.Struct, frozen=True):
    """Names the peer to ask for a chunk.

    Attributes:
        member: the peer.
        fetch: whether the peer should fetch the chunk from the store if it keeps it. Otherwise it sends the chunk only
            if it is on its disk.
    """

    member: PeerMember
    fetch: bool


def choose_peer(
    order: Sequence[PeerMember],
    me: PeerMember,
    is_up: Callable[[PeerMember], bool],
    may_have: Callable[[PeerMember], bool],
    *,
    for_peer: bool,
) -> PeerChoice | None:
    """Returns the peer to ask for a chunk; None if only the store is to be asked.

    | the home is        | asked                                                    |
    | ------------------ | -------------------------------------------------------- |
    | this engine        | the second member, if it may have the chunk from before  |
    | a peer that is up  | the home                                                 |
    | down               | the second member as if it were the home, unless it is this engine |

    If only peers wait for the chunk, the peer that is asked does not fetch it: two engines that know different members
    could otherwise ask each other in a circle.

    Args:
        order: the home, then the second member, which takes its place.
        me: this engine.
        is_up: tells whether a member is asked for chunks (`PeerClient.is_up`).
        may_have: tells whether the disk of the second member is worth a request (`FoundChunks.may_have`).
        for_peer: whether only peers wait for the chunk, and no session here.
    """
    if order[0].id == me.id:
        second = next((member for member in order[1:] if is_up(member) and may_have(member)), None)
        return None if second is None else PeerChoice(second, fetch=False)
    for member in order:
        if member.id == me.id:
            return None
        if is_up(member):
            return PeerChoice(member, fetch=not for_peer)
    return None


class FoundChunks:
    """Remembers, by second member and dataset, whether it had the chunks that their home looked for there.

    There is one for each set of members.
    """

    def __init__(self) -> None:
        self._misses: Counter[tuple[str, str]] = Counter()

    def may_have(self, member: PeerMember, dataset: str) -> bool:
        """Whether a member is worth a request for a chunk of this dataset. Counts the calls, as every 32nd may be."""
        misses = self._misses[member.id, dataset]
        if misses < _TRIES:
            return True
        self._misses[member.id, dataset] += 1
        return (misses - _TRIES) % _PAUSE == _PAUSE - 1

    def record(self, member: PeerMember, dataset: str, found: bool) -> None:
        """Records whether a member had the chunk of a dataset that it was asked for."""
        self._misses[member.id, dataset] = 0 if found else self._misses[member.id, dataset] + 1


# ---------------------------------------------------------------- what a peer has sent


class Received(msgspec.Struct, frozen=True):
    """Holds the file of a chunk that a peer sent and that was checked, in a buffer, until `close`.

    Attributes:
        file: the buffer with the whole file.
        content: bytes of the chunk as the cache stores them: a view of the buffer.
        offsets: int64, (entries + 1,), boundaries in `content`: those of the samples, or, of a recoded chunk, of all
            its entries.
    """

    file: Fetched
    content: memoryview
    offsets: NDArray[np.int64]

    def close(self) -> None:
        """Gives the memory of the buffer back."""
        self.file.close()


def check_file(file: Fetched, dataset: Dataset, chunk: int, where: str) -> Received:
    """Checks that a file is that of the wanted chunk, with its checksums, and returns its content. For a thread.

    Args:
        file: the file as the peer sent it. The result takes it over; after an error the caller closes it.
        dataset: dataset of the chunk.
        chunk: number of the chunk in the dataset.
        where: beginning of an error's message.

    Raises:
        IntegrityError: it is the file of another chunk, has other lengths, or bytes that differ from their checksums.
    """
    wanted = dataset.manifest.chunk(chunk)
    [raw] = file.parts
    header = ChunkHeader.decode(bytes(raw[:HEADER_BYTES]), where)
    _same(where, "key", wanted.key.hex(), header.key.hex())
    _same(where, "codec", int(wanted.codec), header.codec)
    _same(where, "length", header.file_bytes, len(raw))
    content = raw[HEADER_BYTES : HEADER_BYTES + header.local_bytes]
    wrong = f"{where}: {len(content)} bytes are not those of the chunk's samples"
    if dataset.manifest.recoded:
        try:
            offsets = RecordTable.decode(content, wanted.samples, wanted.codec, len(content)).starts
        except ValueError as error:
            raise IntegrityError(f"{wrong}: {error}", where=where) from error
    else:
        offsets = dataset.manifest.sample_offsets(chunk)
        if offsets[-1] != len(content):
            raise IntegrityError(wrong, where=where)
    _same(where, "number of entries", len(offsets) - 1, header.samples)
    table = np.frombuffer(raw, "<u4", offset=HEADER_BYTES + header.local_bytes)
    if not np.array_equal(sample_checksums([content], offsets), table):
        raise IntegrityError(f"{where}: samples of chunk {wanted.key.hex()} differ from their checksums", where=where)
    return Received(file, content, offsets)


def _same(where: str, what: str, expected: str | int, actual: str | int) -> None:
    if expected != actual:
        raise IntegrityError(f"{where}: {what} is {actual}, expected {expected}", where=where)
