"""Makes a batch: loads its samples, each with its own randomness, and puts them together.

The same code in a worker process, in a worker thread and, with `num_workers=0`, in the trainer itself.
"""

from __future__ import annotations

import logging
import pickle
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt

from streamer.errors import WorkerError
from streamer.loader.collate import collate
from streamer.loader.control import Stages
from streamer.loader.seeding import seed_globals
from streamer.loader.source import BatchSource, ChunkUnreadableError, Collate, StagedSource

logger = logging.getLogger(__name__)

OnError = Literal["raise", "skip"]


class SampleFailedError(Exception):
    """Loading one sample raised; the cause is what it raised."""

    def __init__(self, ordinal: int) -> None:
        super().__init__(ordinal)
        self.ordinal = ordinal


@dataclass(frozen=True, slots=True)
class MakerRules:
    """How batches are made; travels to the workers.

    Attributes:
        seed: of the data set.
        collate_fn: the user's, or None for torch's rules.
        on_error: "raise": a sample that fails fails its batch; "skip": it is left out, counted and logged.
        seed_globals: whether the global generators are seeded for each sample: not where threads share them.
    """

    seed: int
    collate_fn: Collate | None = None
    on_error: OnError = "raise"
    seed_globals: bool = True


@dataclass(frozen=True, slots=True)
class Loaded:
    """The samples of a batch, not yet put together."""

    samples: list[object]
    repeated: npt.NDArray[np.bool_]
    left_out: list[tuple[int, BaseException]]


class BatchMaker:
    """Makes batches from one source. Used by one thread.

    Args:
        source: where samples come from.
        rules: how they are put together.
        begin: called before each sample with (task, ordinal), so that somebody else can name it.
    """

    def __init__(self, source: BatchSource, rules: MakerRules, begin: Callable[[int, int], None] | None = None) -> None:
        self._source = source
        self._rules = rules
        self._begin = begin
        self._staged = source if isinstance(source, StagedSource) else None

    def load(self, epoch: int, batch: int, task: int = 0, left_out: frozenset[int] = frozenset()) -> Loaded:
        """Loads the samples of a batch.

        Args:
            epoch: of the batch.
            batch: its number in the epoch.
            task: for `begin`.
            left_out: ordinals not to be loaded.

        Raises:
            SampleFailedError: a sample could not be made (and `on_error` is "raise").
            ChunkUnreadableError: a chunk is to be leased again.
            WorkerError: every sample was left out.
        """
        ordinals, repeated = self._source.batch(epoch, batch)
        loaded = Loaded([], repeated, [])
        kept = [
            at for at, ordinal in enumerate(ordinals.tolist()) if self._take(epoch, ordinal, task, left_out, loaded)
        ]
        if not kept:
            raise WorkerError(
                f"epoch {epoch}, batch {batch}: all {len(ordinals)} samples failed; the last error is the cause",
                epoch=epoch,
                batch=batch,
            ) from (loaded.left_out[-1][1] if loaded.left_out else None)
        return loaded if len(kept) == len(ordinals) else Loaded(loaded.samples, repeated[kept], loaded.left_out)

    def put_together(self, samples: list[object]) -> object:
        """Collates by the user's function or by torch's rules."""
        if self._rules.collate_fn is not None:
            return self._rules.collate_fn(samples)
        return collate(samples)

    def stages(self, load: int, before: tuple[int, int, int]) -> Stages:
        """The stages of a batch that took `load` nanoseconds since the source stood at `before`."""
        read, decode, transform = (now - then for now, then in zip(self.clock(), before, strict=True))
        return Stages(load, read, decode, transform)

    def clock(self) -> tuple[int, int, int]:
        """The source's read, decode and transform nanoseconds so far; zeros if it does not tell."""
        return self._staged.stage_nanoseconds() if self._staged else (0, 0, 0)

    def _take(self, epoch: int, ordinal: int, task: int, left_out: frozenset[int], into: Loaded) -> bool:
        if ordinal in left_out:
            return False
        if self._begin is not None:
            self._begin(task, ordinal)
        if self._rules.seed_globals:
            seed_globals(self._rules.seed, epoch, ordinal)
        try:
            into.samples.append(self._source.load(epoch, ordinal))
        except ChunkUnreadableError:
            raise
        except Exception as error:
            if self._rules.on_error == "raise":
                raise SampleFailedError(ordinal) from error
            into.left_out.append((ordinal, error))
            return False
        return True


class Stopwatch:
    """Nanoseconds between one look and the next."""

    def __init__(self) -> None:
        self._last = time.perf_counter_ns()

    def lap(self) -> int:
        """Since the last look."""
        last, self._last = self._last, time.perf_counter_ns()
        return self._last - last


class RemoteTracebackError(Exception):
    """Carries a worker's traceback as text: the cause of an error that was raised there."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


def freeze_error(error: BaseException, limit: int) -> bytes:
    """An error with its traceback, for the pipe; one that cannot be pickled becomes a WorkerError with its text."""
    text = "".join(traceback.format_exception(error))[-limit // 4 :]
    for candidate in (error, WorkerError(f"{type(error).__name__}: {str(error)[: limit // 8]}")):
        try:
            frozen: bytes = cloudpickle.dumps((candidate, text))
            pickle.loads(frozen)  # noqa: S301 - made one line above; some errors pickle but do not come back
        except Exception:
            logger.debug("an error of type %s does not pickle", type(error).__name__, exc_info=True)
        else:
            if len(frozen) <= limit:
                return frozen
    return cloudpickle.dumps((WorkerError(f"{type(error).__name__}: its text is too long"), text))  # type: ignore[no-any-return]


def thaw_error(frozen: bytes) -> BaseException:
    """The error as it was raised, its cause the worker's traceback as text."""
    error, text = pickle.loads(frozen)  # noqa: S301 - from this trainer's own worker (law 7)
    error.__cause__ = RemoteTracebackError(text)
    assert isinstance(error, BaseException)
    return error
