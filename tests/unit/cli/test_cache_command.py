"""`streamer cache` in this process, on folders that a real cache wrote."""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path

import numpy as np
import pytest

from streamer.cache.chunk_cache import ChunkCache
from streamer.cli.main import main
from streamer.config import CacheConfig, MiB

KEYS = [bytes([number]) * 16 for number in range(1, 4)]


async def _fill(path: Path) -> None:
    async with ChunkCache(CacheConfig(directory=path, limit_bytes=64 * MiB)) as cache:
        for key in KEYS:
            await cache.publish(key, [memoryview(key * 1000)], np.array([0, 6000, 16000]), dataset="d" * 32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Makes a cache of three chunks of one dataset."""
    asyncio.run(_fill(tmp_path / "cache"))
    return tmp_path / "cache"


def _run(capsys: pytest.CaptureFixture[str], *line: str | Path) -> tuple[int, str, str]:
    code = main(["cache", *map(str, line)])
    out, err = capsys.readouterr()
    return code, out, err


def _spoil(folder: Path) -> None:
    [path] = folder.glob(f"chunks/*/{KEYS[1].hex()}*")
    raw = bytearray(path.read_bytes())
    raw[5000] ^= 1
    path.write_bytes(raw)


def test_stat_counts_chunks_per_dataset(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`cache stat` counts chunks and bytes per dataset; without a manifest its share of the data is unknown."""
    code, out, _ = _run(capsys, "stat", folder)
    assert code == 0
    assert out.startswith(f"{folder}: 3 chunks, ")
    assert out.splitlines()[-1].split() == ["d" * 32, "3", "48.2", "kB", "-"]


def test_the_folder_of_the_environment_is_the_default(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cache` works on the folder of STREAMER_CACHE_DIR where none is given, like training."""
    monkeypatch.setenv("STREAMER_CACHE_DIR", str(folder))
    assert _run(capsys, "stat")[1].startswith(f"{folder}: 3 chunks")


def test_check_names_what_is_damaged_and_is_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`cache check` names a damaged chunk and exits with 1; with --repair it removes the file and exits with 0."""
    assert _run(capsys, "check", folder)[:2] == (0, "3 chunks, 48.2 kB: 0 damaged\n")
    _spoil(folder)
    code, out, _ = _run(capsys, "check", folder)
    assert code == 1
    assert out.startswith(f"damaged: {KEYS[1].hex()}: ")
    assert out.endswith("3 chunks, 48.2 kB: 1 damaged\n")
    assert _run(capsys, "check", folder, "--repair")[:1] == (0,)
    assert _run(capsys, "check", folder)[:2] == (0, "2 chunks, 32.1 kB: 0 damaged\n")


def test_clear_asks_for_yes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`cache clear` removes nothing without --yes; with it the folder itself stays."""
    code, out, _ = _run(capsys, "clear", folder)
    assert code == 2
    assert out.endswith("would go; repeat with --yes\n")
    assert len(list(folder.glob("chunks/*/*"))) == 3
    assert _run(capsys, "clear", folder, "--yes")[0] == 0
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("action", [["stat"], ["check"], ["clear", "--yes"]])
def test_a_cleared_folder_is_empty_and_no_error(
    folder: Path, capsys: pytest.CaptureFixture[str], action: list[str]
) -> None:
    """`cache` reports a cleared folder as empty without an error. (It said "No such file or directory".)"""
    assert _run(capsys, "clear", folder, "--yes")[0] == 0
    code, out, err = _run(capsys, action[0], folder, *action[1:])
    assert (code, out, err) == (0, f"{folder}: empty, no cache has been made here\n", "")


def test_export_makes_a_folder_that_stat_and_check_know(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`cache export` copies whole chunks to a layer that stat and check read without a warning."""
    _spoil(folder)
    assert _run(capsys, "export", folder, tmp_path / "layer")[0] == 0
    code, out, err = _run(capsys, "stat", tmp_path / "layer")
    assert (code, out.splitlines()[0].startswith(f"{tmp_path}/layer: 2 chunks"), err) == (0, True, "")
    assert _run(capsys, "check", tmp_path / "layer")[0] == 0


@pytest.mark.parametrize("action", [["check"], ["clear", "--yes"], ["export", "TARGET"]])
def test_an_engine_keeps_its_folder(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], action: list[str]
) -> None:
    """`cache` exits with 4 and does nothing while an engine holds the lock of the folder."""
    holder = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX)
        rest = [str(tmp_path / "layer") if word == "TARGET" else word for word in action[1:]]
        code, out, err = _run(capsys, action[0], folder, *rest)
    finally:
        os.close(holder)
    assert (code, out) == (4, "")
    assert "in use by an engine" in err
    assert len(list(folder.glob("chunks/*/*"))) == 3
    assert not (tmp_path / "layer").exists()


@pytest.mark.parametrize("action", ["stat", "check", "clear", "export"])
def test_what_is_no_cache_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], action: str) -> None:
    """`cache` exits with 4 for a folder that is not a cache, and leaves the user's files alone."""
    (tmp_path / "thesis.tex").write_text("x")
    rest = {"clear": ["--yes"], "export": [str(tmp_path / "layer")]}.get(action, [])
    code, _, err = _run(capsys, action, tmp_path, *rest)
    assert code == 4
    assert str(tmp_path) in err
    assert (tmp_path / "thesis.tex").exists()


def test_a_folder_that_is_not_there_is_code_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`cache` exits with 4 and one line for a missing folder."""
    code, _, err = _run(capsys, "check", tmp_path / "none")
    assert code == 4
    assert err.count("\n") == 1


@pytest.mark.parametrize("action", ["stat", "check", "clear", "export"])
def test_each_action_has_help(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The help of each action of `cache` has the exit codes."""
    with pytest.raises(SystemExit):
        main(["cache", action, "--help"])
    assert "exit codes:" in capsys.readouterr().out
