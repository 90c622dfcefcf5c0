"""What an engine does over time: settles after a start, notices hanging sessions, watches the disk, tidies up."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from streamer.cache.upkeep import scrub, watch_free_space
from streamer.engine.tidy import keep_tidy

if TYPE_CHECKING:
    from streamer.engine.engine import Engine

SILENCE_CHECK_SECONDS = 5.0
# An engine that looks later than this was stopped itself: what its consumers said meanwhile lies unread.
LATE_SECONDS = 1.0
# Eight clients were back within 40 ms of each other (two cores, 2026-11-20).
SETTLE_QUIET_SECONDS = 0.25


class Upkeep:
    """Timers and background tasks of one engine; `start` once, `stop` at the end."""

    def __init__(self, engine: Engine, tasks: asyncio.TaskGroup) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._settled = False
        self._settle_by = self._loop.time() + engine.config.settle_seconds
        self._settle_timer = self._loop.call_at(self._settle_by, self._settle)
        self._look_at_silence_later()
        self._running = [
            tasks.create_task(watch_free_space(engine.cache, engine.limit_changed), name="free space"),
            tasks.create_task(scrub(engine.cache, engine.rejects.damaged, engine.policy_holds), name="scrub"),
            tasks.create_task(keep_tidy(engine), name="tidy"),
        ]

    def stop(self) -> None:
        """Ends all of it; idempotent."""
        self._settle_timer.cancel()
        self._silence_timer.cancel()
        for task in self._running:
            task.cancel()

    def somebody_came(self) -> None:
        """All clients of an engine that died come back at once: when they stop coming, the wait is over."""
        if not self._settled:
            self._settle_timer.cancel()
            at = min(self._settle_by, self._loop.time() + SETTLE_QUIET_SECONDS)
            self._settle_timer = self._loop.call_at(at, self._settle)

    def _settle(self) -> None:
        self._settled = True
        self._engine.pump.freed(self._engine.policy.settle())
        self._engine.kick()

    def _watch_silence(self) -> None:
        """A consumer that hangs while others wait loses the protection of its look-ahead."""
        engine = self._engine
        late_seconds = self._loop.time() - self._silence_timer.when()
        self._look_at_silence_later()
        if late_seconds > LATE_SECONDS:
            self._forgive(late_seconds)
            return
        if not any(session.track.has_questions() for session in engine.sessions.values()):
            return
        for session in engine.sessions.values():
            if session.admitted and engine.now() - session.heard_at > engine.config.silent_seconds:
                engine.pump.freed(engine.policy.silence(session.name))
        engine.kick()

    def _look_at_silence_later(self) -> None:
        self._silence_timer = self._loop.call_later(SILENCE_CHECK_SECONDS, self._watch_silence)

    def _forgive(self, absent_seconds: float) -> None:
        """Nobody was silent while this process did not listen."""
        for session in self._engine.sessions.values():
            session.heard_at = min(self._engine.now(), session.heard_at + absent_seconds)
