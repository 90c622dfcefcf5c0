"""Shares the cache with the other engines of a job, whose ranks have found each other; see `loader.rank.sharing`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from streamer.base.concurrency import in_thread
from streamer.engine.engine import Engine
from streamer.errors import StreamerError
from streamer.peers.group import PeerGroup, join_peers
from streamer.peers.homes import LaneHomes, LaneReaders, PeerMember
from streamer.peers.lookup import join_address

# Another job takes over after this, so that fetches which wait for peers of the job before can end.
_FINISH_SECONDS = 30.0


class JobPeers:
    """Runs the peers of the last job that shares this engine's cache. On the engine's loop."""

    def __init__(self, engine: Engine, tasks: asyncio.TaskGroup) -> None:
        self._engine = engine
        self._tasks = tasks
        self._job: tuple[str, str] | None = None
        self._running: asyncio.Task[None] | None = None
        self._datasets: dict[str, LaneReaders] = {}
        self._change = asyncio.Lock()

    def __repr__(self) -> str:
        return f"JobPeers({list(self._datasets)}, running={self._running is not None})"

    async def share(self, token: str, host: str, members: Sequence[PeerMember], readers: dict[str, LaneReaders]) -> str:
        """Answers the other engines of a job, and asks them for the chunks that they keep.

        Args:
            token: secret of the job, which they show each other.
            host: address of this machine, as they reach it.
            members: all engines, including this one, or none while they are not known.
            readers: readers of datasets, by name, which are added to those of the job.

        Returns:
            The address where this engine answers.

        Raises:
            ConfigError: it cannot listen.
        """
        async with self._change:
            if self._job != (token, host):
                if self._running is not None:
                    # The peers of the job before end.
                    self._engine.sources.use_peers(None)
                    await self._engine.in_flight.finish(_FINISH_SECONDS)
                    self._running.cancel()
                    await asyncio.wait([self._running])
                    self._job = None
                    self._running = None
                    self._datasets = {}
                opened: asyncio.Future[PeerGroup] = asyncio.get_running_loop().create_future()
                self._running = self._tasks.create_task(self._run(token, host, opened), name="peers of a job")
                self._group = await opened
                self._job = token, host
            if members:
                await self._group.answers()
                self._datasets |= readers
                me = self._group.me
                self._group.move(await in_thread(None, LaneHomes, me, members, self._datasets))
            return self._group.me.address

    def close(self) -> None:
        """Ends the peers with the engine."""
        if self._running is not None:
            self._running.cancel()

    async def _run(self, token: str, host: str, opened: asyncio.Future[PeerGroup]) -> None:
        config = replace(self._engine.config.peers, listen=join_address(host, 0))
        try:
            async with join_peers(self._engine, config=config, token=token) as group:
                opened.set_result(group)
                await asyncio.Event().wait()  # until it is cancelled
        except StreamerError as error:
            if opened.done():
                raise
            opened.set_exception(error)
