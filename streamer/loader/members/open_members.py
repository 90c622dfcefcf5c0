"""Opens the members of a mix together: manifests and annotations of several at the same time."""

from __future__ import annotations

import logging
import resource
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from streamer.batches.samples.opened import OpenedDataset
from streamer.batches.waiting import watch_wait
from streamer.client.settings import ClientSettings
from streamer.config import Environment
from streamer.errors import StreamerError
from streamer.loader.members.connections import EngineConnections
from streamer.loader.members.member import Member

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

# Measured: 651 with 200 members in a rank, 53 without (2026-11-23).
_DESCRIPTORS_PER_MEMBER = 4
_OTHER_DESCRIPTORS = 512
# Stores, and then annotations of members, that are requested at the same time.
_OPENED_AT_ONCE = 8


def open_together(members: Sequence[tuple[str, Member]]) -> list[OpenedDataset]:
    """The members of a mix, by name and in order, each with its manifest, annotations and selection.

    Raises:
        StreamerError: of a member, which it names.
    """
    _allow_descriptors(_DESCRIPTORS_PER_MEMBER * len(members))
    # The same dataset may be a member twice; a member is for one thread.
    distinct = {id(member): (name, member) for name, member in members}
    pools = _share_connections([member for _, member in distinct.values()])
    try:
        with ThreadPoolExecutor(min(_OPENED_AT_ONCE, len(distinct)), "streamer-open") as threads:
            of_pools = [[one for one in distinct.values() if one[1].connections is pool] for pool in pools]
            list(threads.map(_find, of_pools, pools))
            # Some may still have to ask for their annotations.
            found = dict(zip(distinct, threads.map(_open, distinct.values()), strict=True))
    finally:
        for connections in pools:
            connections.close_idle()
    return [found[id(member)] for _, member in members]


def _allow_descriptors(count: int) -> None:
    """Raises the limit of open files where many members need it: each holds its manifest and its shared memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + _OTHER_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < needed:
        limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def _share_connections(members: Sequence[Member]) -> list[EngineConnections]:
    """Lets members with the same engine and credentials use the same connections: a thousand of them need a few."""
    environment = Environment.read()
    shared: list[tuple[ClientSettings, EngineConnections]] = []
    for member in members:
        settings = member.options.client_settings(environment, member.job)
        known = next((connections for other, connections in shared if other == settings), None)
        if known is None:
            shared.append((settings, member.connections))
        else:
            member.connections = known
    return [connections for _, connections in shared]


def _find(members: Sequence[tuple[str, Member]], connections: EngineConnections) -> None:
    """Opens the manifests of members that share connections, over one of them."""
    environment = Environment.read()
    unknown = deque((name, member) for name, member in members if _named(name, member.settled) is None)
    asks = [_named(name, partial(member.ask, environment)) for name, member in unknown]
    if not asks:
        return

    def waited_for() -> str:
        return unknown[0][1].waited_for() if unknown else ""

    with watch_wait(logger, waited_for), connections.for_requests() as connection:
        folders = connection.manifests(asks)
        while unknown:
            name, member = unknown[0]
            folder = _named(name, partial(next, folders))
            _named(name, partial(member.found, folder))
            unknown.popleft()


def _open(member: tuple[str, Member]) -> OpenedDataset:
    name, opened = member
    return _named(name, lambda: opened.opened)


def _named(name: str, work: Callable[[], Result]) -> Result:
    """An error says which member it is about."""
    try:
        return work()
    except StreamerError as error:
        raise error.of_member(name) from error
