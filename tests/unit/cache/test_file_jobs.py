"""Turns on keys, and what threads do with files."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streamer.cache.chunk_files import KeyLocks, unlink_all


async def test_turns_are_taken_in_order_and_given_back() -> None:
    """A key is held by one at a time; other keys do not wait; repeated keys are one."""
    turns = KeyLocks()
    seen: list[str] = []

    async def hold(name: str, keys: list[bytes]) -> None:
        async with turns.hold(keys):
            seen.append(f"+{name}")
            await asyncio.sleep(0)
            seen.append(f"-{name}")

    await asyncio.gather(hold("a", [b"1", b"1"]), hold("b", [b"1", b"2"]), hold("c", [b"3"]))
    assert seen.index("+b") > seen.index("-a")
    assert seen.index("+c") < seen.index("-a")
    assert "0 keys busy" in repr(turns)


async def test_a_turn_ends_with_an_error() -> None:
    """The next one gets it."""
    turns = KeyLocks()
    with pytest.raises(KeyError):
        async with turns.hold([b"1"]):
            raise KeyError
    async with turns.hold([b"1"]) as done:
        assert not done.is_set()
    assert done.is_set()


def test_files_that_cannot_be_unlinked_are_noted(tmp_path: Path) -> None:
    """The others go; one that is gone already is no failure."""
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    failed: dict[bytes, OSError] = {}
    unlink_all({b"f": tmp_path / "file", b"d": tmp_path / "folder", b"n": tmp_path / "none"}, failed)
    assert list(failed) == [b"d"]
    assert not (tmp_path / "file").exists()
