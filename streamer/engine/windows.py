"""Plans the windows of all sessions: the bytes that they have open and in look-ahead, for which the cache has room.

`scheduler.py` and `tools/planning/simulate.py` pass them to the policy. Ranks in step have many chunks in common: if an
order has fewer lanes than ranks, several ranks read each lane, and all of them have its chunks open. The room for such
a chunk is needed once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from streamer.cache.policy.quotas import SessionWindow
from streamer.cache.policy.table import charge_each
from streamer.engine.session import EngineSession
from streamer.wire.schedule import EpochSchedule

# Most entries of schedules that are compared, which takes 20 ms, and most sessions. More sessions are not the ranks of
# one machine, and in data with more entries open chunks are a small part.
_MAX_ENTRIES = 50_000
_MAX_SESSIONS = 64


def plan_windows(sessions: Collection[EngineSession]) -> dict[str, SessionWindow]:
    """Returns the window of each part of each session, by the part's name in the policy (`SessionOpening.session`)."""
    return {
        opening.session: SessionWindow(int(session.open_share * opening.open_bytes), opening.lookahead_bytes)
        for session in sessions
        for opening in session.openings
    }


def share_open_chunks(sessions: Collection[EngineSession]) -> None:
    """Sets `open_share` of sessions in step: the bytes that they have open together, divided by the sum of each alone.

    Sessions that have been compared with each other before are left as they are. The share is 1 if it is not known.
    """
    groups: defaultdict[tuple[object, ...], list[EngineSession]] = defaultdict(list)
    for session in sessions:
        request = session.request
        if request.order_id and len(session.openings) == 1:
            groups[request.job, request.stream, request.dataset, request.order_id, request.start].append(session)
    for group in groups.values():
        names = tuple(session.name for session in group)
        if any(session.compared_with != names for session in group):
            schedules = [session.first_schedule for session in group]
            share = 1.0
            if 1 < len(group) <= _MAX_SESSIONS and sum(len(one.chunk) for one in schedules) <= _MAX_ENTRIES:
                sizes = charge_each(group[0].collection.file_bytes)
                # Both sums are of the first schedules. After a restart of the engine these are what was left of an
                # epoch, or nothing.
                summed = sum(count_open_together([one], sizes) for one in schedules)
                share = count_open_together(schedules, sizes) / summed if summed else 1.0
            for session in group:
                session.open_share = share
                session.compared_with = names


def count_open_together(schedules: Sequence[EpochSchedule], sizes: npt.NDArray[np.int64]) -> int:
    """Returns the maximum number of bytes that schedules have open together at one step, where each chunk counts once.

    Args:
        schedules: schedules that are at the same step at any time.
        sizes: bytes of each chunk.
    """
    chunk = np.concatenate([one.chunk for one in schedules]).astype(np.int64)
    chunks = np.concatenate([chunk, chunk])
    steps = np.concatenate([one.first for one in schedules] + [one.last + 1 for one in schedules])
    change = np.repeat(np.array([1, -1]), len(chunk))
    # Counts the readers of each chunk from step to step, at each step those that come before those that go.
    order = np.lexsort((-change, steps, chunks))
    readers = np.cumsum(change[order])
    edges = order[readers == (change[order] > 0)]
    signed = change[edges] * sizes[chunks[edges]]
    # Within one step chunks are closed before others are opened.
    by_step = np.lexsort((signed, steps[edges]))
    return int(np.cumsum(signed[by_step]).max(initial=0))
