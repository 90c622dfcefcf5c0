"""Locks by key, and the unlinking of chunk files by threads."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streamer.cache.chunk_files import KeyLocks, unlink_all


async def test_turns_are_taken_in_order_and_given_back() -> None:
    """One holder at a time has a key; holders of other keys do not wait, and a repeated key counts once."""
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
    """A key is free for the next holder after its holder has raised an error."""
    turns = KeyLocks()
    with pytest.raises(KeyError):
        async with turns.hold([b"1"]):
            raise KeyError
    async with turns.hold([b"1"]) as done:
        assert not done.is_set()
    assert done.is_set()


def test_files_that_cannot_be_unlinked_are_noted(tmp_path: Path) -> None:
    """`unlink_all` notes each path that cannot be unlinked and unlinks the others; a missing file is no failure."""
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    failed: dict[bytes, OSError] = {}
    unlink_all({b"f": tmp_path / "file", b"d": tmp_path / "folder", b"n": tmp_path / "none"}, failed)
    assert list(failed) == [b"d"]
    assert not (tmp_path / "file").exists()
