"""One rank's batches of a dataset or of a mix: plan, schedule, sessions and state, for one batch size."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.client.engine_client import EngineClient
from streamer.client.session import EpochSchedule, SessionSpec
from streamer.config import RankConfig
from streamer.errors import Detail
from streamer.loader import contracts
from streamer.loader.contracts import Recipe
from streamer.loader.rank.agreement import StoreBudget, gather_for
from streamer.loader.rank.connections import EngineConnections
from streamer.loader.rank.step_session import Integers, Share, StepSession
from streamer.loader.samples.maker import SampleLocation
from streamer.loader.skipping import SharedBudget, Skipped, SkipRules
from streamer.order.plan import LastBatch, RankPlan, sample_count
from streamer.order.rank_split import RankSplit
from streamer.order.state import Resume


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a consumer.

    Attributes:
        rank_config: rank and world size.
        stream: distinguishes the loaders of one job.
        free_parts: parts of the order that were chosen automatically: a resumed state may replace them.
        skip_rules: for samples that cannot be made.
        peers: whether the ranks' engines share their caches, as the user says it.
    """

    rank_config: RankConfig
    stream: str
    free_parts: frozenset[str]
    skip_rules: SkipRules
    peers: str = "off"


class StreamNames:
    """Names the streams of one dataset or mix, within which the ranks of a job must agree."""

    def __init__(self) -> None:
        self._usual_batch = 0

    def name(self, data: str, batch_size: int, plain: bool) -> str:
        """The name of a loader's stream.

        The first batch size is the usual one, so that ranks that begin with different sizes are refused.

        Args:
            data: samples and shuffle.
            batch_size: of one rank.
            plain: for a bare loop or torch's DataLoader.
        """
        if plain:
            return f"{data}, sample by sample"
        self._usual_batch = self._usual_batch or batch_size
        return data if batch_size == self._usual_batch else f"{data}, by {batch_size}"


class Geometry(Protocol):
    """The part of a recipe that describes the batches of all ranks."""

    @property
    def global_batch(self) -> int:
        """Samples of a batch over all ranks."""
        ...

    @property
    def last_batch(self) -> LastBatch:
        """What becomes of an incomplete last batch."""
        ...

    @property
    def roots(self) -> tuple[Path, ...]:
        """Cache folders as this process sees them."""
        ...


class SavedPlace(msgspec.Struct, frozen=True):
    """The place of a state that has been read and checked.

    Attributes:
        epoch: the running epoch.
        position: samples of the epoch delivered over all ranks.
        resume: where to continue; after a finished epoch in the next one.
    """

    epoch: int
    position: int
    resume: Resume


class EpochPlans(Protocol):
    """The plans of one rank."""

    def plan(self, epoch: int) -> RankPlan:
        """The rank's plan of an epoch."""
        ...


class Maker(Protocol):
    """Makes the samples of an iterator in this process."""

    def places(self, ordinals: npt.NDArray[np.int64]) -> Sequence[SampleLocation]:
        """Locates samples."""
        ...

    def make(self, epoch: int, place: SampleLocation) -> object:
        """Reads, decodes and transforms one sample."""
        ...


class RankStream(ABC):
    """One rank's batches. Used by one thread at a time; each of its sessions has its own connection to the engine.

    Attributes:
        rank_config: rank and world size.
        global_batch: samples of a batch over all ranks.
        last_batch: what becomes of an incomplete last batch.
        roots: cache folders as this process sees them.
    """

    _plans: EpochPlans

    def __init__(self, connections: EngineConnections, identity: Identity, geometry: Geometry) -> None:
        self._connections = connections
        self._last_connection: EngineClient | None = None
        self._identity = identity
        self.rank_config = identity.rank_config
        self.global_batch = geometry.global_batch
        self.last_batch = geometry.last_batch
        self.roots = list(geometry.roots)

    # ------------------------------------------------------------ what differs

    @property
    def mix(self) -> contracts.MixedStream | None:
        """See PreparedStream.mix."""
        return None

    @property
    @abstractmethod
    def seed(self) -> int:
        """The seed of the order."""

    @abstractmethod
    def samples_in(self, epoch: int) -> int:
        """Number of samples of an epoch, over all ranks, without repeats."""

    @abstractmethod
    def facts(self) -> dict[str, Detail]:
        """The values that must be equal on all ranks."""

    @abstractmethod
    def sample_number(self, ordinal: int) -> int:
        """The number that `dataset[i]` takes for a sample."""

    @abstractmethod
    def sample_key(self, ordinal: int) -> str:
        """A readable name of a sample."""

    @abstractmethod
    def recipe(self) -> Recipe:
        """The recipe for worker processes."""

    @abstractmethod
    def maker(self) -> Maker:
        """Makes samples in this process."""

    @abstractmethod
    def ordinals(self, epoch: int, batch: int) -> Integers:
        """This rank's samples of a batch, as `maker` takes them."""

    @abstractmethod
    def state(self, epoch: int, batch: int) -> dict[str, object]:
        """The state to save after `batch` batches of `epoch`."""

    @abstractmethod
    def _adopt(self, state: Mapping[str, object], strict: bool) -> SavedPlace:
        """Reads and checks a state; it replaces the parts of the order that were chosen automatically.

        Raises:
            StateError: it does not fit, which `strict=False` allows in a mix.
        """

    @abstractmethod
    def _enter_at(self, epoch: int, start: int) -> None:
        """Numbers the batches of `epoch` from position `start` on."""

    def _values(self, epoch: int) -> tuple[float, ...]:
        """Passes over each member of a mix in an epoch; (): one dataset."""
        return ()

    @abstractmethod
    def _session_spec(self, epoch: int, share: Share, schedule: EpochSchedule) -> SessionSpec:
        """The consumer of a session."""

    # ------------------------------------------------------------ what is shared

    @property
    def local_batch(self) -> int:
        """Samples of this rank in a batch."""
        return self.global_batch // self.rank_config.world_size

    def rank_samples(self, epoch: int) -> int:
        """Samples of this rank in a whole epoch, repeats that fill the last batch included."""
        rank = self.rank_config
        split = RankSplit(1, self.global_batch, rank.world_size, rank.rank)
        return sample_count(self.samples_in(epoch), split, self.last_batch)

    def sample_label(self, ordinal: int) -> str:
        """The number of a sample for messages."""
        return str(self.sample_number(ordinal))

    def skipped(self, ordinal: int, cause: str) -> Skipped:
        """The record of a sample that was replaced."""
        return Skipped(self.sample_number(ordinal), self.sample_key(ordinal), cause)

    @property
    def skip_rules(self) -> SkipRules:
        """The rules for samples that cannot be made."""
        return self._identity.skip_rules

    def shared_budget(self) -> SharedBudget | None:
        """Counts skipped samples over all ranks; None: one rank. Every rank must call it equally often."""
        return None if gather_for(self.rank_config) is None else StoreBudget.of_process_group()

    def plan(self, epoch: int) -> RankPlan:
        """This rank's batches of an epoch."""
        return self._plans.plan(epoch)

    def session(self, epoch: int, start_batch: int) -> contracts.StepSession:
        """Opens the rank's session, whose step 0 is that batch."""
        return self.share_session(epoch, Share(first=start_batch), endless=True)

    def share_session(self, epoch: int, share: Share, *, endless: bool) -> contracts.StepSession:
        """Opens a session for one worker's share of the rank's batches, from the share's first batch on."""
        # Computed once for request and session: with 540 chunks it delays the first batch by 2 to 6 ms.
        begun = [self.schedule(epoch, share)]

        def schedule(epoch: int, share: Share) -> tuple[EpochSchedule, int]:
            return begun.pop() if begun else self.schedule(epoch, share)

        spec = self._session_spec(epoch, share, begun[0][0])
        self._last_connection = connection = self._connections.take(self._last_connection)
        on_close = partial(self._connections.give_back, connection)
        try:
            return StepSession(connection, spec, schedule, (epoch, share), endless=endless, on_close=on_close)
        except BaseException:
            on_close()
            raise

    def schedule(self, epoch: int, share: Share) -> tuple[EpochSchedule, int]:
        """The chunks that a share needs in an epoch, by its steps, and the number of its steps."""
        plan = self._plans.plan(epoch)
        steps = share.steps(plan.batches)
        whole, values = plan.schedule(share.first), self._values(epoch)
        first, last = share.steps_from(whole.first), np.minimum(share.steps_until(whole.last), steps - 1)
        mine = np.flatnonzero(first <= last)
        mine = mine[np.argsort(first[mine], kind="stable")]
        passes = whole.passes[mine].astype(np.uint32) if values else None
        return EpochSchedule(epoch, whole.chunk[mine], first[mine], last[mine], passes, values), steps

    def resume(self, state: Mapping[str, object]) -> tuple[int, int]:
        """Restores a saved state; after a finished epoch the next one begins.

        Returns:
            The epoch and the number of its next batch.

        Raises:
            StateError: the state is of another dataset, order or seed.
        """
        return self._continue(self._adopt(state, strict=True).resume)

    def adopt(self, state: Mapping[str, object]) -> tuple[int, int]:
        """As `resume`, but a mix may be changed; the epoch after the saved one begins.

        Raises:
            ConfigError: this is no mix.
            StateError: the state is of another dataset.
        """
        return self._continue(self._adopt(state, strict=False).resume)

    def reenter(self, state: Mapping[str, object]) -> tuple[int, int]:
        """Like `resume`, but a finished epoch stays finished: its next batch is one past the last."""
        saved = self._adopt(state, strict=True)
        batch, start = divmod(saved.position, self.global_batch)
        return self._continue(Resume(saved.epoch, start, batch))

    def _continue(self, resume: Resume) -> tuple[int, int]:
        self._enter_at(resume.epoch, resume.start)
        return resume.epoch, resume.batch
