"""Fills a cache before the first job, for `streamer warm`: reads, in one session, the chunks that the cache can keep.

The chunks are read in *slices*, of which each is a step and an epoch of the session. `warm_command.py` uses it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from streamer.cache.folder import ROOT_ID, list_chunk_files, open_layer
from streamer.cache.maintenance import export_chunks, export_manifests
from streamer.cache.policy.table import Places, charge_each, draw_ranks, to_keys
from streamer.client.engine_client import EngineClient
from streamer.client.session import Session
from streamer.config import MiB
from streamer.errors import CacheError
from streamer.formats import chunkfile
from streamer.manifest.table import Manifest
from streamer.peers.homes import Homes, PeerMember
from streamer.wire.messages import OpenSession
from streamer.wire.schedule import EpochSchedule

Integers = npt.NDArray[np.int64]
# Takes the bytes that are done, and all bytes.
Report = Callable[[int, int], None]

# Bytes of a slice: enough for 32 requests of 8 MiB at once, few enough to see progress.
_SLICE_BYTES = 256 * MiB
# A slice takes at most this share of the cache: the rest is for the chunks that stay.
_OPEN_SHARE = 1 / 16
# If the rate is limited, a slice is what may be received in this time: a longer burst would exceed the limit.
_BURST_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class WarmPlan:
    """Which chunks of a dataset are to be made local.

    Attributes:
        chunks: numbers of the chunks in the order of fetching, int64 (n,).
        file_bytes: length of the file of each of them, as the function of this name returns it: int64 (n,).
        present_chunks: number of the dataset's chunks that are there already and stay, which `chunks` leaves out. It is
            0 if all chunks were chosen, those that are there among them.
        missing_chunks: number of the dataset's chunks for which the cache has no space.
    """

    chunks: Integers
    file_bytes: Integers
    present_chunks: int
    missing_chunks: int


@dataclass(frozen=True, kw_only=True)
class Warmed:
    """The result of a warming, over all chunks of its plan.

    Attributes:
        chunks: number of the plan's chunks, which have all been local, and are still local if there was no target.
        local_chunks: number of the dataset's chunks that are local at the end, those in layers among them.
        total_bytes: length of the files of the plan's chunks together, as `file_bytes` says.
        fetched_bytes: bytes that had to be fetched for them.
    """

    chunks: int
    local_chunks: int
    total_bytes: int
    fetched_bytes: int


class Pace:
    """Limits the mean rate of a transfer, measured from the time at which this object is made.

    Args:
        bytes_per_second: the limit; 0 for none.
        now: returns the time in seconds; tests replace it.
        sleep: waits for so many seconds; tests replace it.
    """

    def __init__(
        self,
        bytes_per_second: int,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.bytes_per_second = bytes_per_second
        self._now = now
        self._sleep = sleep
        self._started = now()

    def hold(self, received_bytes: int) -> None:
        """Waits until the limit allows that so many bytes have been received since the beginning."""
        if self.bytes_per_second:
            early = self._started + received_bytes / self.bytes_per_second - self._now()
            if early > 0:
                self._sleep(early)

    def slice_bytes(self, limit_bytes: int) -> int:
        """Returns the bytes of a slice, at least 1, for a cache with this limit."""
        whole = max(1, min(_SLICE_BYTES, int(limit_bytes * _OPEN_SHARE)))
        return min(whole, max(1, int(self.bytes_per_second * _BURST_SECONDS))) if self.bytes_per_second else whole


def plan(
    manifest: Manifest,
    present: set[bytes],
    room_bytes: int | None,
    below: frozenset[bytes] = frozenset(),
    places: Places | None = None,
) -> WarmPlan:
    """Chooses the chunks that the cache would keep anyway, by the same rank, so that no epoch replaces them later.

    Args:
        manifest: the dataset.
        present: keys of the chunks in the cache.
        room_bytes: bytes that chunks of this dataset may take together. With None all chunks are chosen, those that are
            present or in a layer first.
        below: keys of the chunks in read-only layers, which take no space.
        places: which peers keep which chunks, so that this engine's own come first; None without peers.
    """
    keys = to_keys(manifest.chunk_keys)
    here = _are_in(keys, present - below)
    free = _are_in(keys, below)
    there = here | free
    sizes = file_bytes(manifest)
    order = np.lexsort((-draw_ranks(keys, places), ~there))
    if room_bytes is None:
        return WarmPlan(chunks=order, file_bytes=sizes[order], present_chunks=0, missing_chunks=0)
    order = order[int(there.sum()) :]
    charges = charge_each(sizes)
    room = room_bytes - int(charges[here].sum())
    fitting = int(np.searchsorted(np.cumsum(charges[order]), room, side="right"))
    chosen = order[:fitting]
    return WarmPlan(
        chunks=chosen, file_bytes=sizes[chosen], present_chunks=int(there.sum()), missing_chunks=len(order) - fitting
    )


def _are_in(keys: npt.NDArray[np.bytes_], wanted: Collection[bytes]) -> npt.NDArray[np.bool_]:
    # A key has 16 bytes, of which numpy drops zero bytes at the end.
    return np.fromiter((bytes(key).ljust(16, b"\0") in wanted for key in keys), np.bool_, len(keys))


def file_bytes(manifest: Manifest) -> Integers:
    """Returns the length in bytes of each chunk's file, which is an estimate for recoded chunks: int64 (chunks,)."""
    return chunkfile.HEADER_BYTES + manifest.chunk_local_bytes + manifest.chunk_samples * chunkfile.CRC_BYTES


def present_keys(root: Path) -> set[bytes]:
    """Returns the keys of the chunks in a cache folder or layer.

    Raises:
        CacheError: the folder cannot be read, or has another layout.
        OSError: the chunks of the folder cannot be listed.
    """
    return {key for key, _ in list_chunk_files(open_layer(root))}


class Warming:
    """Makes the chunks of a dataset local by one session that reads each of them once. Used once, by one thread.

    Args:
        client: client of the engine; the caller closes it.
        manifest: the dataset.
        pace: limits the rate at which chunks are fetched.
        target: folder to which all chunks are copied while they are local, or None to make them local only.
    """

    def __init__(self, client: EngineClient, manifest: Manifest, pace: Pace, target: Path | None = None) -> None:
        self._client = client
        self._manifest = manifest
        self._pace = pace
        self._target = target
        self._consumer = f"warm {os.getpid()}"
        self._fetched: dict[int, int] = {}
        self._known = 0

    def run(self, report: Report) -> tuple[WarmPlan, Warmed]:
        """Makes chunks local, slice by slice: those that the cache keeps, or with a target all of them.

        Args:
            report: called after each slice.

        Returns:
            The plan, and what was done.

        Raises:
            CacheError: a chunk could not be copied to the target, or the cache folder cannot be read.
            StreamerError: the store, the cache or the engine failed.
            OSError: the chunks of the cache folder or of a layer cannot be listed.
        """
        own, *layers = _folders(self._client)
        if self._target is not None:
            # They come first, so that what an interrupted run has copied can be used.
            for folder in (own, *layers):
                export_manifests(folder, self._target)
        present = present_keys(own)
        below = frozenset[bytes]().union(*map(present_keys, layers))
        limit = self._counter("limit_bytes")
        places = self._find_places()
        everything = self._target is not None
        chosen = plan(
            manifest=self._manifest,
            present=present | below if everything else present,
            room_bytes=None if everything else limit,
            below=below,
            places=places,
        )
        session = self._client.open_session(
            OpenSession(0, "", dataset=self._manifest.digest, consumer=self._consumer, stream="warm")
        )
        try:
            slices = list(cut(chosen.file_bytes, self._pace.slice_bytes(limit)))
            if slices and not everything:
                # The engine tells how much must stay free for chunks in flight once it knows the first chunks.
                self._extend(session, 1, slices, chosen.chunks)
                chosen = plan(
                    manifest=self._manifest,
                    present=present,
                    room_bytes=max(limit - self._counter("staging_bytes"), 0),
                    below=below,
                    places=places,
                )
                slices = list(cut(chosen.file_bytes, self._pace.slice_bytes(limit)))
            warmed = self._read(session, chosen, slices, report)
        finally:
            session.close()
        if everything:
            # The cache has not kept all that went through it.
            local = set[bytes]().union(*map(present_keys, _folders(self._client)))
            keys = to_keys(self._manifest.chunk_keys)
            warmed = replace(warmed, local_chunks=int(_are_in(keys, local).sum()))
        return chosen, warmed

    def _find_places(self) -> Places | None:
        """Returns the share of this engine among its peers, or None if it has none.

        Peers keep different chunks, so that together they hold more.
        """
        members = [
            (PeerMember(str(row["member"]), "", int(_number(row["limit_bytes"]))), row["here"])
            for row in cast("list[dict[str, object]]", self._client.statistics().get("homes", []))
        ]
        if len(members) < 2:
            return None
        (me,) = [member for member, here in members if here]
        return Homes(me, [member for member, here in members if not here]).places

    def _read(self, session: Session, chosen: WarmPlan, slices: Sequence[slice], report: Report) -> Warmed:
        """Makes the chunks of the plan local within the limit of the rate, and copies them if there is a target."""
        total = int(chosen.file_bytes.sum())
        done = 0
        for number, part in enumerate(slices):
            # The engine fetches all that it knows. So it is sent one slice ahead, or none with a limit of the rate.
            self._extend(session, number + (1 if self._pace.bytes_per_second else 2), slices, chosen.chunks)
            session.wait(number)
            self._take(chosen.chunks[part])
            # The engine counts the bytes of the present slice until its leases end.
            sessions = cast("list[dict[str, object]]", self._client.statistics()["sessions"])
            for entry in sessions:
                if entry["consumer"] == self._consumer:
                    cost = _number(entry["epoch_needed_bytes"]) - _number(entry["epoch_hit_bytes"])
                    self._fetched[int(_number(entry["epoch"]))] = int(cost)
            session.done(number + 1)
            done += int(chosen.file_bytes[part].sum())
            report(done, total)
            self._pace.hold(sum(self._fetched.values()))
        return Warmed(
            chunks=len(chosen.chunks),
            local_chunks=chosen.present_chunks + len(chosen.chunks),
            total_bytes=total,
            fetched_bytes=sum(self._fetched.values()),
        )

    def _extend(self, session: Session, upto: int, slices: Sequence[slice], chunks: Integers) -> None:
        """Sends the engine the slices below number `upto` that it does not know yet."""
        while self._known < min(upto, len(slices)):
            wanted = chunks[slices[self._known]]
            steps = np.full(len(wanted), self._known, np.int64)
            session.extend(EpochSchedule(self._known, wanted.astype(np.uint32), steps, steps))
            self._known += 1

    def _take(self, chunks: Integers) -> None:
        """Copies chunks, which are local and leased now, to the target if there is one.

        Raises:
            CacheError: some could not be copied.
        """
        if self._target is None:
            return
        missing = {self._manifest.chunk_keys[chunk].tobytes() for chunk in chunks}
        for folder in _folders(self._client):
            held = [key for key in missing if (folder / chunkfile.relative_path(key)).exists()]
            if held:
                missing -= export_chunks(folder, self._target, held)
        if missing:
            raise CacheError(
                f"{len(missing)} of {len(chunks)} chunks could not be copied to {self._target}; the log says why, and "
                "a second run copies only what is missing",
                where=str(self._target),
            )

    def _counter(self, name: str) -> int:
        return int(_number(self._client.statistics()[name]))


def _folders(client: EngineClient) -> list[Path]:
    """Returns the cache folder and the layers below it, without the folder in memory that replaces a full disk."""
    own, *rest = client.roots()
    return [own, *(root for root in rest if (root / ROOT_ID).exists())]


def cut(sizes: Integers, slice_bytes: int) -> Iterator[slice]:
    """Yields slices that cover a sequence of chunks, of at most `slice_bytes` together or of one larger chunk.

    Args:
        sizes: bytes of each chunk, int64 (n,).
        slice_bytes: bytes of a slice.
    """
    start = 0
    held = 0
    for i, size in enumerate(sizes.tolist()):
        if i > start and held + size > slice_bytes:
            yield slice(start, i)
            start = i
            held = 0
        held += size
    if start < len(sizes):
        yield slice(start, len(sizes))


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return value
