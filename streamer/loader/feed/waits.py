"""Describes what the next batch of the trainer waits for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from streamer.batches import causes
from streamer.batches.workers.handle import Pending, WorkerHandle
from streamer.batches.workers.pool import WorkerPool
from streamer.loader.rank.rank_stream import RankStream

# Modules of the user's that are named.
_MOST_NAMES = 4


def waited_for(head: Pending | None, pool: WorkerPool, modules: Sequence[str], work_name: Callable[[int], str]) -> str:
    """Describes what a batch that is not made yet waits for.

    Args:
        head: Batch that is waited for, or None if it has not begun.
        pool: the workers.
        modules: imported for them.
        work_name: names what a worker does, from the ordinal of its sample.
    """
    if head is None:
        return "the engine, to accept the session of this loader"
    which = f"epoch {head.epoch}, batch {head.batch}"
    match head.timeline.state:
        case causes.NETWORK:
            return f"the data of {which}: its chunks come from the store, or from the engine's disk"
        case causes.START:
            return f"worker processes, to make {which}: {_starting(modules)}"
        case causes.RING:
            return f"a free slot for {which}: the trainer holds all batches; clone() what outlives the step"
        case causes.LOST:
            return f"{which}, which is made again: its worker ended"
        case _:
            return f"{which}: {_at_work(head, pool, work_name)}"


def who(prepared: RankStream) -> str:
    """Returns the start of a line of the log: the rank, if there are several."""
    if prepared.rank_config.world_size == 1:
        return ""
    return f"rank {prepared.rank_config.rank}: "


def work_name(ordinal: int, prepared: RankStream) -> str:
    """Describes what a worker was doing: its sample with name and number, as `dataset[i]` takes it, or the batch."""
    if ordinal < 0:
        return "putting the batch together"
    return f"sample {prepared.sample_label(ordinal)} ({prepared.sample_key(ordinal)})"


def engine_text(values: Mapping[str, object] | None) -> str:
    """Describes what the engine does about it, from its counters; None if it has not answered."""
    if values is None:
        return "the engine does not answer within half a second"
    chunks = values.get("fetches", 0)
    requests = values.get("in_flight", 0)
    return f"the engine is to fetch {chunks} chunks, with {requests} requests under way"


def _starting(modules: Sequence[str]) -> str:
    if not modules:
        return "they start"
    named = ", ".join(modules[:_MOST_NAMES]) + (", ..." if len(modules) > _MOST_NAMES else "")
    return f"they start, and import the modules of your code first ({named})"


def _at_work(head: Pending, pool: WorkerPool, work_name: Callable[[int], str]) -> str:
    handle = _worker_of(head, pool)
    if handle is None:
        return "a worker will make it"
    doing = pool.find_doing(handle)
    if not doing.task:
        return f"worker {handle.number} has it and has not begun"
    return f"worker {handle.number} is at it, now at {work_name(doing.ordinal)}"


def _worker_of(head: Pending, pool: WorkerPool) -> WorkerHandle | None:
    # Copies: the feeder's thread changes both meanwhile.
    for handle in list(pool.workers.values()):
        if head in list(handle.tasks):
            return handle
    return None
