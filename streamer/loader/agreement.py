"""Finds rank and world size, and compares the dataset's settings over all ranks.

`loader/members/member.py` and `loader/rank/` call it before they read, `loader/rank/sharing.py` to exchange the
addresses of engines, and `loader/kinds/growing/growth.py` to agree on rounds.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from streamer import errors
from streamer.batches.torch_arguments import get_worker_info
from streamer.batches.waiting import WaitNotice, watch_wait
from streamer.config import Environment, RankConfig
from streamer.errors import BrokenError, ConfigError, Detail, StateError, StreamerError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

logger = logging.getLogger(__name__)


# Passes a text of this rank to all ranks, and returns the texts of all in order of rank. It is None for a rank that did
# not take part. Blocks until every rank has called it, or the time is over.
Gather = Callable[[str], list[str | None]]


# Torch itself waits as long for a rank (default of init_process_group with gloo).
_WAIT_SECONDS = 1800.0
_REASON = (
    ": each does so at its first iter(), so all must iterate the same loaders in the same order; this is an "
    f"error after {_WAIT_SECONDS:.0f} s"
)
# Rank 0 asks for the others at this interval before it says that it waits.
_POLL_SECONDS = 0.01


class ParentRank(msgspec.Struct, frozen=True):
    """Keeps the rank of the process that has pickled a dataset, for the workers that a plain DataLoader spawns.

    Such a worker cannot find its rank itself.

    Attributes:
        rank: Number of the rank.
        world_size: Number of ranks.
        pid: Process that has unpickled the dataset.
    """

    rank: int
    world_size: int
    pid: int

    @classmethod
    def from_parent(cls, place: tuple[int, int]) -> ParentRank:
        """Returns the rank for the process that calls this when it unpickles; `place` is rank and world size."""
        return cls(*place, os.getpid())

    @property
    def counts(self) -> bool:
        """Whether this process reads as that rank: it has unpickled this object, and is a worker of a DataLoader."""
        return self.pid == os.getpid() and get_worker_info() is not None


def detect(
    rank: int | None = None,
    world_size: int | None = None,
    environment: Environment | None = None,
    parent: ParentRank | None = None,
) -> RankConfig:
    """Finds rank and world size: as given, else those of `parent` in its worker, else from torch.distributed.

    Without a process group the variables of a launcher say them.

    Args:
        rank: Rank that the user gives, with `world_size`.
        world_size: World size that the user gives, with `rank`.
        environment: Parsed environment, or None to read it.
        parent: Rank of the process that has started this one as a worker, or None if none was sent along.

    Raises:
        ConfigError: only one of rank and world size is given, the rank is not below the world size, or a variable of
            the environment is wrong.
    """
    found = (environment or Environment.read()).rank
    if (rank is None) != (world_size is None):
        given, missing = ("rank", "world_size") if world_size is None else ("world_size", "rank")
        raise ConfigError(f"{given} is given without {missing}; give both or neither", field=missing)
    place = (rank, world_size) if rank is not None and world_size is not None else None
    if place is None and parent is not None and parent.counts:
        place = parent.rank, parent.world_size
    if place is None:
        place = process_group()
    return found if place is None else replace(found, rank=place[0], world_size=place[1], note="")


def gather_for(config: RankConfig) -> Gather | None:
    """Returns the function by which all ranks exchange a text, over the default process group.

    Returns None if there is no process group or only one rank, or if `config` has another rank or world size than the
    process group, because the user has given them.
    """
    group = process_group()
    if group is None or group[1] == 1 or group != (config.rank, config.world_size):
        return None
    return _gather


def agree(gather: Gather, facts: Mapping[str, Detail], failure: Exception | None) -> None:
    """Compares `facts` over all ranks. Collective.

    Args:
        gather: Collects one text of every rank.
        facts: Values that must be equal everywhere, by name.
        failure: Error because of which this rank could not prepare, or None.

    Raises:
        StreamerError: a rank failed. It raises its own error, the others that of the lowest rank that failed, or a
            BrokenError that names it if it is of another type.
        Exception: `failure`, if it is of another type.
        StateError: a rank has other facts than rank 0 (names both, and the facts), or some did not take part.
    """
    facts_of = _exchange_outcomes(gather, dict(facts), failure)
    for rank, found in enumerate(facts_of):
        differing = [name for name in found if found[name] != facts_of[0].get(name)]
        if differing:
            listed = "; ".join(f"{name}: {facts_of[0].get(name)!r} and {found[name]!r}" for name in differing)
            raise StateError(
                f"rank 0 and rank {rank} do not train on the same order: {listed}. Give every rank the same dataset, "
                "seed, batch_size and state",
                rank=rank,
                fields=", ".join(differing),
            )


def exchange(gather: Gather, make: Callable[[], object]) -> list[Any]:
    """Returns the value of each rank, in order of rank. Collective.

    Args:
        gather: Collects one text of every rank.
        make: Returns a JSON value.

    Raises:
        StreamerError: `make` failed on a rank. It raises its own error, the others that of the lowest rank that failed,
            or a BrokenError that names it if it is of another type.
        StateError: some ranks did not take part.
        Exception: an error of `make` of another type, on this rank.
    """
    value: object = None
    failure: Exception | None = None
    try:
        value = make()
    except Exception as error:  # noqa: BLE001 - the other ranks are told
        failure = error
    return _exchange_outcomes(gather, value, failure)


def _exchange_outcomes(gather: Gather, value: object, failure: Exception | None) -> list[Any]:
    """Returns the value of each rank, or raises the failure of the lowest rank that failed.

    A rank that failed takes part, too, so that the others do not wait for it.
    """
    failed: tuple[str, str, dict[str, Detail]] | None = None
    if isinstance(failure, StreamerError):
        failed = type(failure).__name__, failure.message, failure.details
    elif failure is not None:
        failed = BrokenError.__name__, f"{type(failure).__name__}: {failure}", {}
    texts = gather(json.dumps({"facts": value, "failure": failed}))
    missing = [rank for rank, text in enumerate(texts) if text is None]
    if missing:
        raise StateError(
            f"ranks {missing} of {len(texts)} did not compare their datasets within {_WAIT_SECONDS:.0f} s; "
            "every rank must iterate (or take len of) the same loaders in the same order",
            ranks=str(missing),
        )
    entries = [json.loads(text) for text in texts if text is not None]
    for rank, entry in enumerate(entries):
        if entry["failure"] is not None:
            if failure is not None:
                raise failure
            kind, message, details = entry["failure"]
            raise errors.from_wire(kind, f"rank {rank}: {message}", details)
    return [entry["facts"] for entry in entries]


def process_group() -> tuple[int, int] | None:
    """Returns rank and size of the default process group, or None if there is none. Never imports torch."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return int(torch.distributed.get_rank()), int(torch.distributed.get_world_size())


def _gather(text: str) -> list[str | None]:
    """Gathers through the process group's store: no collective that could meet another one, no device, no pickle."""
    from torch import distributed

    store = process_store()
    rank = distributed.get_rank()
    size = distributed.get_world_size()
    # The n-th comparison of this rank is the n-th of every other.
    place = f"streamer/{store.add(f'streamer/compared/{rank}', 1)}"
    store.set(f"{place}/{rank}", text)
    if rank == 0:
        texts = compress_texts(_collect(store, [f"{place}/{other}" for other in range(size)]))
        store.set(f"{place}/all", texts)  # type: ignore[arg-type]  # it takes bytes, too
    # Rank 0 answers in any case, so the others wait longer than it does.
    with watch_wait(logger, lambda: _describe_first(rank)):
        store.wait([f"{place}/all"], timedelta(seconds=_WAIT_SECONDS + 60))
    return decompress_texts(store.get(f"{place}/all"))


def compress_texts(texts: list[str | None]) -> bytes:
    """Returns the texts of all ranks in the form in which each rank reads them from rank 0.

    Each text that several ranks have passed is there once. Compressed, because 2,048 ranks on 256 engines with
    share_caches="auto" read 222 MB of plain JSON, and 47 MB of this (2026-11-23).
    """
    distinct = list(dict.fromkeys(texts))
    number = {text: at for at, text in enumerate(distinct)}
    return zlib.compress(json.dumps([distinct, [number[text] for text in texts]]).encode())


def decompress_texts(packed: bytes) -> list[str | None]:
    """Returns the texts that `compress_texts` was given."""
    distinct, numbers = json.loads(zlib.decompress(packed))
    return [distinct[number] for number in numbers]


def _collect(store: Store, keys: list[str]) -> list[str | None]:
    """Waits for the texts of all ranks and returns them, None for each that is late. Only rank 0 calls it.

    With R ranks that is R requests in all, not R squared.
    """

    def describe_wait() -> str:
        missing = [rank for rank, key in enumerate(keys) if not store.check([key])]
        return f"ranks {missing} of {len(keys)} to compare their datasets{_REASON}"

    try:
        WaitNotice(logger).wait(partial(_wait_all, store, keys), describe_wait)
    except RuntimeError:  # torch's timeout; `check` finds the missing ranks
        return [store.get(key).decode() if store.check([key]) else None for key in keys]
    return [store.get(key).decode() for key in keys]


def _wait_all(store: Store, keys: list[str], seconds: float | None) -> None:
    """Waits until the store has all keys.

    Args:
        store: Store of the process group.
        keys: Names of the keys.
        seconds: Longest wait, in which the store is asked repeatedly: torch warns when its own wait times out. With
            None torch itself waits, for `_WAIT_SECONDS`.

    Raises:
        TimeoutError: the `seconds` are over.
        RuntimeError: torch's wait is over.
    """
    if seconds is None:
        store.wait(keys, timedelta(seconds=_WAIT_SECONDS))
        return
    deadline = time.monotonic() + seconds
    while not store.check(keys):
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(_POLL_SECONDS)


def _describe_first(rank: int) -> str:
    """Returns what all ranks wait for, on rank 1; else "", since one rank says it. Rank 0 may be the missing one."""
    return f"rank 0, which compares the datasets of all ranks{_REASON}" if rank == 1 else ""


def process_store() -> Store:
    """Returns the store of the default process group, which must exist."""
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_store()
