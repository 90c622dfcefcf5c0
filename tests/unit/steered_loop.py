"""An event loop whose clock a test sets, for what is late or absent."""

from __future__ import annotations


class SteeredLoop:
    """Stands for an event loop: `sleep` calls each timer at its time, `be_away` calls them late; it runs no tasks."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timers: list[SteeredTimer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, moment: float, call: object, *arguments: object) -> SteeredTimer:
        timer = SteeredTimer(moment, call, arguments)
        self.timers.append(timer)
        return timer

    def call_later(self, seconds: float, call: object, *arguments: object) -> SteeredTimer:
        return self.call_at(self.now + seconds, call, *arguments)

    def be_away(self, seconds: float) -> None:
        """Stops the process for a time, after which all timers that are due are called at once, in order."""
        self.now += seconds
        while due := [timer for timer in self.timers if timer.moment <= self.now]:
            self._call(min(due, key=lambda timer: timer.moment))

    def sleep(self, seconds: float) -> None:
        """Lets time pass, and calls each timer at its time."""
        end = self.now + seconds
        while due := [timer for timer in self.timers if timer.moment <= end]:
            first = min(due, key=lambda timer: timer.moment)
            self.now = max(self.now, first.moment)
            self._call(first)
        self.now = end

    def _call(self, timer: SteeredTimer) -> None:
        self.timers.remove(timer)
        if not timer.cancelled:
            timer.call(*timer.arguments)  # type: ignore[operator]


class SteeredTimer:
    """Stands for asyncio's TimerHandle: it can be cancelled and tells its time."""

    def __init__(self, moment: float, call: object, arguments: tuple[object, ...]) -> None:
        self.moment, self.call, self.arguments = moment, call, arguments
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def when(self) -> float:
        return self.moment
