"""The ranks of one simulated node: workers that make batches ahead, and a step that all ranks begin together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from streamer.engine.session import EngineSession
from streamer.order.plan import RankPlan
from streamer.planning.model import Job
from streamer.planning.node import SimulatedNode
from streamer.planning.virtual_clock import VirtualClock

# As the loader has them (loader/options.py): batches that are begun and not yet taken.
_SPAN_PER_WORKER = 8
_SPAN_MAX = 48
# As its session has it (loader/rank/step_session.py): the next epoch is planned when so much of one is asked for.
_PLANNED_SHARE = 3 / 4


class SimulatedRank:
    """One rank's loader: asks for the chunks of the next batches, makes those that are local, keeps them in order.

    Args:
        node: whose engine it uses.
        clock: of the simulation.
        job: its numbers.
        rank: its number.
        plan: epoch -> the rank's batches; every epoch has the same number.

    Attributes:
        session: with the engine.
        needed_bytes: of the chunks' files, by epoch.
        on_made: called when a batch is made.
    """

    def __init__(
        self, node: SimulatedNode, clock: VirtualClock, job: Job, rank: int, plan: Callable[[int], RankPlan]
    ) -> None:
        self._clock = clock
        self._job = job
        self._plan = plan
        self._batches = plan(0).batches
        self._span = min(_SPAN_PER_WORKER * job.workers, _SPAN_MAX)
        self._idle = job.workers
        self._begun = self._taken = self._planned = 0
        self._ready = -1
        self._at_work: set[int] = set()
        self._made: set[int] = set()
        self.needed_bytes: Counter[int] = Counter()
        self.on_made: Callable[[], None] = lambda: None
        self.session: EngineSession = node.open_session(f"rank {rank}", job.nodes * job.ranks_per_node, self._on_ready)

    def start(self) -> None:
        """Begins the first batches."""
        self._extend()
        self._dispatch()

    def has(self, step: int) -> bool:
        """The batch of a step is made."""
        return step in self._made

    def take(self, step: int) -> None:
        """The trainer takes it."""
        self._made.discard(step)
        self._taken = step + 1
        self._dispatch()

    def _on_ready(self, through: int, rejects: int) -> None:
        self._ready = through
        self._dispatch()

    def _dispatch(self) -> None:
        """Gives the next batches to idle workers, as far as their chunks are local."""
        self._report()
        while self._idle and self._may_begin() and self._begun <= self._ready:
            step, self._begun, self._idle = self._begun, self._begun + 1, self._idle - 1
            self._at_work.add(step)
            self._clock.call_later(self._job.batch_size * self._job.sample_seconds, self._finish, step)
            self._report()

    def _may_begin(self) -> bool:
        """As `Window.draw`: not too far ahead, and at most in the epoch after the trainer's."""
        last_epoch = max(0, self._taken - 1) // self._batches + 1
        return self._begun - self._taken < self._span and self._begun // self._batches <= last_epoch

    def _report(self) -> None:
        """Tells the engine what is read, and what is wanted."""
        want = self._begun + self._span if self._idle and self._may_begin() else self.session.progress.want
        while want >= self._batches * (self._planned - 1 + _PLANNED_SHARE):
            self._extend()
        progress, done = self.session.progress, min(self._at_work, default=self._begun)
        if done > progress.done or want > progress.want:
            self.session.advance(done, want)

    def _finish(self, step: int) -> None:
        self._at_work.discard(step)
        self._made.add(step)
        self._idle += 1
        self._dispatch()
        self.on_made()

    def _extend(self) -> None:
        epoch, base = self._planned, self._planned * self._batches
        self._planned += 1
        schedule = self._plan(epoch).schedule()
        order = np.argsort(schedule.first, kind="stable")
        columns = schedule.chunk[order], schedule.first[order] + base, schedule.last[order] + base
        self.needed_bytes[epoch] = int(self.session.collection.file_bytes[columns[0]].sum())
        self.session.extend(epoch, columns, True)


class SimulatedTrainer:
    """The training loop of all ranks of a node.

    Args:
        clock: of the simulation.
        ranks: which step together.
        job: its numbers.
        batches: of an epoch.

    Attributes:
        steps: that are over.
        first_batch_at: when all ranks had their first batch.
        waited, ended: by epoch: seconds of waiting without the first batch, and when it was over.
    """

    def __init__(self, clock: VirtualClock, ranks: list[SimulatedRank], job: Job, batches: int) -> None:
        self._clock = clock
        self._ranks = ranks
        self._job = job
        self._batches = batches
        self._asked_at = 0.0
        self._computing = False
        self.steps = 0
        self.first_batch_at = 0.0
        self.waited = [0.0] * job.epochs
        self.ended = [0.0] * job.epochs
        for rank in ranks:
            rank.on_made = self._begin_step

    def start(self) -> None:
        """Begins the first epoch."""
        for rank in self._ranks:
            rank.start()

    @property
    def over(self) -> bool:
        """All epochs are."""
        return self.steps >= self._job.epochs * self._batches

    def seconds(self) -> Iterator[float]:
        """How long each epoch took; the first one from the first batch on."""
        begun = self.first_batch_at
        for ended in self.ended:
            yield ended - begun
            begun = ended

    def _begin_step(self) -> None:
        if self._computing or self.over or not all(rank.has(self.steps) for rank in self._ranks):
            return
        self._computing = True
        if self.steps:
            self.waited[self.steps // self._batches] += self._clock.time() - self._asked_at
        else:
            self.first_batch_at = self._clock.time()
        for rank in self._ranks:
            rank.take(self.steps)
        self._clock.call_later(self._job.step_seconds, self._end_step)

    def _end_step(self) -> None:
        self._computing, self._asked_at = False, self._clock.time()
        self.ended[self.steps // self._batches] = self._clock.time()
        self.steps += 1
        self._begin_step()
