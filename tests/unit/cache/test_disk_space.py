"""The bytes of the cache folder: reserved before they are written, given back after they are gone.
The folder is a real one; where a disk of known size is needed, `statvfs` is replaced."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from streamer.cache.disk_space import FIXED_BYTES, DiskSpace
from streamer.cache.policy.table import charge
from streamer.config import CacheConfig
from streamer.errors import CacheFullError


@pytest.fixture
def space(tmp_path: Path) -> DiskSpace:
    """Makes a limit of two files of 100 KB beside an empty folder of manifests."""
    (tmp_path / "manifests").mkdir()
    folder_bytes = (tmp_path / "manifests").stat().st_blocks * 512
    limit_bytes = FIXED_BYTES + folder_bytes + 2 * charge(100_000)
    return DiskSpace(tmp_path, CacheConfig(directory=tmp_path, limit_bytes=limit_bytes, free_floor_bytes=0), 0)


async def test_what_does_not_fit_is_refused_with_the_numbers(space: DiskSpace) -> None:
    """A reservation above the limit raises CacheFullError with the wanted bytes; after a release it succeeds."""
    await space.reserve(100_000)
    await space.reserve(100_000)
    assert space.charged_bytes == space.hard_limit_bytes == 2 * charge(100_000)
    with pytest.raises(CacheFullError, match="no room for a chunk of") as caught:
        await space.reserve(100_000)
    assert caught.value.details["wanted_bytes"] == charge(100_000)
    space.release(100_000)
    await space.reserve(100_000)


async def test_a_reservation_waits_for_unlinks_under_way(space: DiskSpace) -> None:
    """A reservation that does not fit waits for unlinks under way, whose bytes are about to be free."""
    await space.reserve(200_000)
    end = asyncio.Event()
    space.unlink_begins(end)
    waiting = asyncio.create_task(space.reserve(100_000))
    await asyncio.sleep(0)
    assert not waiting.done()
    space.release(200_000)
    space.unlink_ends(end)
    end.set()
    await waiting
    assert space.charged_bytes == charge(100_000)


async def test_while_the_disk_refuses_the_limit_is_what_is_there(space: DiskSpace) -> None:
    """While the disk refuses writes the limit is what is charged and what memory takes, until the next measurement."""
    await space.reserve(100_000)
    space.refused = True
    assert space.limits(5000, 0).limit_bytes == charge(100_000) + 5000
    space.measure()
    assert space.limits(5000, 0).limit_bytes == space.hard_limit_bytes


DISK_BYTES = 1000 << 30


@pytest.mark.parametrize(
    ("floor", "free_bytes", "floor_bytes"),
    [
        pytest.param((100 << 30, None), 300 << 30, 100 << 30, id="bytes as configured"),
        pytest.param((None, 0.2), 300 << 30, 200 << 30, id="a share of the disk"),
        pytest.param((250 << 30, 0.2), 300 << 30, 250 << 30, id="the larger of both"),
        pytest.param((0, None), 300 << 30, 0, id="none"),
        pytest.param((None, None), 300 << 30, 50 << 30, id="the default is 5 % of the disk"),
        pytest.param((None, None), 20 << 30, 4 << 30, id="a fifth of what was free on a full disk"),
    ],
)
def test_the_floor_of_free_space(
    floor: tuple[int | None, float | None],
    free_bytes: int,
    floor_bytes: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The configured floor of free space counts in full, in bytes or as a share of the disk; the default is 5 %.
    kubelet evicts at 10 % or 15 %, where 2 % of the disk were kept free."""
    (tmp_path / "manifests").mkdir()
    disk = (4096, 4096, DISK_BYTES >> 12, free_bytes >> 12, free_bytes >> 12, 100, 100, 100, 0, 255)
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(disk))
    config = CacheConfig(directory=tmp_path, limit_bytes=1 << 50, free_floor_bytes=floor[0], free_floor_share=floor[1])
    space = DiskSpace(tmp_path, config, 0)
    assert space.limits(0, 0).limit_bytes == pytest.approx(free_bytes - floor_bytes, abs=1)


@pytest.mark.parametrize("limit_bytes", [None, 150_000_000, 1 << 40])
def test_no_limit_is_above_what_is_granted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit_bytes: int | None
) -> None:
    """No limit exceeds the bytes that may be reserved, however free space and charges change on a disk of 200 MB.
    (The automatic limit rose to 172 MB, of which 167 were granted: a healthy job ended.)"""
    disk_bytes, random = 200_000_000, Random(1)
    (tmp_path / "manifests").mkdir()
    found = os.statvfs(tmp_path)
    free = disk_bytes

    def small(path: object) -> SimpleNamespace:
        return SimpleNamespace(
            f_blocks=disk_bytes // 4096,
            f_frsize=4096,
            f_bavail=free // 4096,
            f_flag=found.f_flag,
            f_files=0,
            f_favail=0,
        )

    monkeypatch.setattr(os, "statvfs", small)
    space = DiskSpace(tmp_path, CacheConfig(directory=tmp_path, limit_bytes=limit_bytes), 0)
    for _ in range(500):
        space.charged_bytes = random.randrange(disk_bytes)
        # Counted twice, once, or not at all.
        free = max(0, min(disk_bytes, disk_bytes - space.charged_bytes + random.randrange(-60_000_000, 60_000_000)))
        space.measure()
        limits = space.limits(random.randrange(50_000_000), 50_000_000)
        assert limits.limit_bytes <= limits.passing_bytes <= limits.max_bytes == space.max_bytes
