"""`streamer index --beside` as a command in this process: the manifest is found beside tars, and no tar is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamer.cli.main import main
from tests.tars import tar_of


@pytest.fixture
def tars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes two tars of three samples."""
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "run"))
    folder = tmp_path / "tars"
    folder.mkdir()
    for name in "ab":
        (folder / f"{name}.tar").write_bytes(tar_of([(f"{name}{i}.txt", b"text") for i in range(3)]))
    return folder


def indexed(capsys: pytest.CaptureFixture, *arguments: str) -> tuple[int, str, str]:
    code = main(["index", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_manifest_lies_beside_the_data(tars, tmp_path, capsys):
    """After `streamer index --beside` another cache's index reads no tar, and prints the same first lines."""
    code, first, _ = indexed(capsys, f"{tars}/", "--beside", "--cache-dir", str(tmp_path / "one"))
    assert code == 0
    assert (tars / ".streamer" / "root.json").is_file()
    code, second, steps = indexed(capsys, str(tars), "--cache-dir", str(tmp_path / "two"))
    assert code == 0
    assert first.splitlines()[:2] == second.splitlines()[:2]
    assert "index 2 objects (20.5 kB): the listing is enough" in steps


def test_raw_files_need_none(tars, tmp_path, capsys):
    """`--beside` is refused for raw files, because their listing says everything."""
    where = ["--cache-dir", str(tmp_path / "one")]
    code, _, error = indexed(capsys, str(tars), "--format", "folder", "--beside", *where)
    assert code == 2
    assert "of raw files the listing is enough" in error


@pytest.mark.parametrize("name", ["*.tar", "a.tar"])
def test_it_needs_the_folder(tars, tmp_path, capsys, name):
    """`--beside` is refused for a pattern or a single file, whose listing would not find the manifest."""
    code, _, error = indexed(capsys, str(tars / name), "--beside", "--cache-dir", str(tmp_path / "one"))
    assert code == 2
    assert "is not the one folder (or prefix) in which all objects are" in error
