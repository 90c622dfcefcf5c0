"""Sessions that wait until it is known that their client may read; see `engine.rights`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from streamer.engine.collection import PartRequest
from streamer.engine.rights import Rights
from streamer.errors import ServiceError, StreamerError
from streamer.service.client_connection import ClientConnection
from streamer.wire.messages import Advance, Extend, Reject

Step = Extend | Advance | Reject
# Of all sessions that wait, with the schedules that their clients have sent meanwhile.
_MOST_BYTES = 64 << 20


class SessionProofs:
    """Holds the messages of sessions until the store has answered. Lives on the engine's loop.

    Args:
        rights: of the engine.
        tasks: runs the requests to the store.
    """

    def __init__(self, rights: Rights, tasks: asyncio.TaskGroup) -> None:
        self._rights = rights
        self._tasks = tasks
        self._waiting: dict[tuple[ClientConnection, int], list[Step]] = {}
        self._bytes = 0

    def __repr__(self) -> str:
        return f"SessionProofs({len(self._waiting)} sessions wait)"

    def count(self, client: ClientConnection) -> int:
        """Returns how many sessions of a client wait."""
        return sum(owner is client for owner, _ in self._waiting)

    def waits(self, client: ClientConnection, session: int) -> bool:
        """Whether this session waits."""
        return (client, session) in self._waiting

    def start(
        self,
        client: ClientConnection,
        session: int,
        parts: Sequence[PartRequest],
        opened: Callable[[list[Step]], None],
        failed: Callable[[StreamerError], None],
    ) -> None:
        """Asks the stores; then calls `opened` with the messages that have come meanwhile, or `failed`."""
        self._waiting[client, session] = []
        self._tasks.create_task(self._prove((client, session), parts, opened, failed), name="prove a right")

    def keep(self, client: ClientConnection, step: Step) -> None:
        """Keeps a message of a session that waits.

        Raises:
            ServiceError: too much is kept already.
        """
        self._bytes += _bytes(step)
        self._waiting[client, step.session].append(step)
        if self._bytes > _MOST_BYTES:
            raise ServiceError(f"{self._bytes} bytes of schedules wait for their stores; try again later")

    def drop(self, client: ClientConnection, session: int | None = None) -> None:
        """Forgets a session that is closed, or all of a client."""
        for key in list(self._waiting):
            if key[0] is client and session in (None, key[1]):
                self._take(key)

    def _take(self, key: tuple[ClientConnection, int]) -> list[Step] | None:
        steps = self._waiting.pop(key, None)
        self._bytes -= sum(map(_bytes, steps or ()))
        return steps

    async def _prove(
        self,
        key: tuple[ClientConnection, int],
        parts: Sequence[PartRequest],
        opened: Callable[[list[Step]], None],
        failed: Callable[[StreamerError], None],
    ) -> None:
        waiting = self._waiting[key]
        error: StreamerError | None = None
        try:
            for part in parts:
                try:
                    await self._rights.prove(part.dataset, part.options)
                except StreamerError as refusal:
                    raise (refusal.of_member(part.name) if part.name else refusal) from refusal
        except StreamerError as refusal:
            error = refusal
        if self._waiting.get(key) is not waiting:  # closed meanwhile, perhaps opened again
            return
        steps = self._take(key) or []
        if error is None:
            opened(steps)
        else:
            failed(error)


def _bytes(step: Step) -> int:
    parts = (step.chunk, step.first, step.last, step.passes) if isinstance(step, Extend) else ()
    return 200 + sum(map(len, parts))
