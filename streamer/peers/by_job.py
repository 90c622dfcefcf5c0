"""Shares an engine's cache with the other engines of one job, whose ranks name them (`loader/rank/sharing.py`).

The engine calls it for requests of its clients (`service/long_requests.py`).
"""

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

# When another job takes over, fetches that wait for peers of the job before have this long to end.
_FINISH_SECONDS = 30.0


class JobPeers:
    """Runs server and client for the peers of one job: the last one that called `share`. On the engine's loop.

    Args:
        engine: engine whose cache is shared.
        tasks: the engine's tasks, to which that of the peers is added.
    """

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
        """Answers the other engines of a job from now on, and asks them for chunks once `members` are given.

        The first call of a job (another token or host) starts the peers, and ends those of the job before. It may wait
        up to 30 s for their fetches.

        Args:
            token: secret of the job, which its engines show each other.
            host: IP address of this machine, as the other engines reach it.
            members: all engines of the job, including this one, or none while they are not known.
            readers: which members read which lanes of datasets, by name of the dataset. They are added to those of
                earlier calls.

        Returns:
            The address (host:port) at which this engine answers.

        Raises:
            ConfigError: this engine cannot listen there.
        """
        async with self._change:
            if self._job != (token, host):
                if self._running is not None:
                    # Another job has taken over: the peers of the one before end.
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
        """Cancels the peers, if there are any; for the end of the engine."""
        if self._running is not None:
            self._running.cancel()

    async def _run(self, token: str, host: str, opened: asyncio.Future[PeerGroup]) -> None:
        """Runs the peers until it is cancelled; `opened` gets the group, or the error if they cannot start."""
        config = replace(self._engine.config.peers, listen=join_address(host, 0))
        try:
            async with join_peers(self._engine, config=config, token=token) as group:
                opened.set_result(group)
                await asyncio.Event().wait()  # until it is cancelled
        except StreamerError as error:
            if opened.done():
                raise
            opened.set_exception(error)
