"""Describes what the next batch of the trainer waits for, for the log.

Used by `feeder.py`, `supply.py` and `loader/epoch.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from streamer.batches import causes
from streamer.batches.workers.handle import Pending
from streamer.batches.workers.pool import WorkerPool
from streamer.loader.rank.rank_stream import RankStream

# Number of the user's modules that a message names.
_MAX_NAMES = 4


def describe_wait(
    head: Pending | None, pool: WorkerPool, modules: Sequence[str], name_work: Callable[[int], str]
) -> str:
    """Describes what a batch that is not made yet waits for, as the end of a sentence. Any thread may call it.

    Args:
        head: Batch that is waited for, or None if it has not begun.
        pool: The workers.
        modules: Modules of the user's code that workers import first.
        name_work: Describes what a worker does, from the number of its sample or a number below 0; see `describe_work`.
    """
    if head is None:
        return "the engine, to accept the session of this loader"
    which = f"epoch {head.epoch}, batch {head.batch}"
    match head.timeline.state:
        case causes.NETWORK:
            return f"the data of {which}: its chunks come from the store, or from the engine's disk"
        case causes.START:
            if not modules:
                return f"worker processes, to make {which}: they start"
            named = ", ".join(modules[:_MAX_NAMES]) + (", ..." if len(modules) > _MAX_NAMES else "")
            return f"worker processes, to make {which}: they start, and import the modules of your code first ({named})"
        case causes.RING:
            return f"a free slot for {which}: the trainer holds all batches; clone() what outlives the step"
        case causes.LOST:
            return f"{which}, which is made again: its worker ended"
        case _:
            # Both are copied, because the feeder's thread changes them meanwhile.
            handle = next((each for each in list(pool.workers.values()) if head in list(each.tasks)), None)
            if handle is None:
                return f"{which}: a worker will make it"
            doing = pool.find_status(handle)
            if not doing.task:
                return f"{which}: worker {handle.number} has it and has not begun"
            return f"{which}: worker {handle.number} is at it, now at {name_work(doing.ordinal)}"


def name_rank(prepared: RankStream) -> str:
    """Returns the start of a line of the log: "rank 3: ", or "" if there is one rank."""
    if prepared.rank_config.world_size == 1:
        return ""
    return f"rank {prepared.rank_config.rank}: "


def describe_work(ordinal: int, prepared: RankStream) -> str:
    """Describes what a worker was doing: its sample with name and number, or the batch if `ordinal` is below 0."""
    if ordinal < 0:
        return "putting the batch together"
    return f"sample {prepared.sample_label(ordinal)} ({prepared.sample_key(ordinal)})"


def describe_engine(values: Mapping[str, object] | None) -> str:
    """Describes what the engine does about a wait, from its counters; they are None if it has not answered."""
    if values is None:
        return "the engine does not answer within half a second"
    chunks = values.get("fetches", 0)
    requests = values.get("in_flight", 0)
    return f"the engine is to fetch {chunks} chunks, with {requests} requests under way"
