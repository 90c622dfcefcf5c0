"""The programs of README and documentation run as processes as they are printed, and the documentation builds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]


def run(program: str, folder: Path, *arguments: str) -> list[str]:
    """Returns the lines that a program prints in `folder`, with a cache and an engine of its own."""
    (folder / "program.py").write_text(program)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STREAMER_")}
    own = {"STREAMER_RUNTIME_DIR": str(folder / "run"), "STREAMER_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, "program.py", *arguments],
        cwd=folder,
        env=environment | own | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_the_program_of_the_readme_runs(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The program of the README reads three epochs of a local folder of images."""
    folder = tmp_path_factory.mktemp("r")
    rng = np.random.default_rng(0)
    for number in range(96):
        path = folder / "images" / ("cats", "dogs")[number % 2] / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (8, 8, 3), np.uint8)).save(path)
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = run(program, folder, "images/")
    assert lines == [
        f"epoch {epoch}: {96 * (epoch + 1)} images so far, torch.uint8 (224, 224, 3)" for epoch in range(3)
    ]


def test_the_quickstart_runs_block_by_block(tmp_path_factory: pytest.TempPathFactory) -> None:
    """All Python blocks of the first page run in order, in one process, and print what is expected."""
    folder = tmp_path_factory.mktemp("q")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "index.md").read_text(), re.DOTALL)
    lines = run("\n".join(blocks), folder)
    assert lines[0] == "64 ['cats', 'dogs']"
    assert lines[2:4] == [f"{epoch} torch.Size([16, 64, 64, 3]) torch.uint8 torch.Size([16])" for epoch in (0, 1)]
    assert lines[5] == "2 batches are left of the epoch"
    assert lines[-2:] == ["64 samples", "64 samples, no other process"]


@pytest.mark.slow
def test_the_page_about_mixing_runs_block_by_block(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The Python blocks of the page about mixing run in order and print what the page says."""
    folder = tmp_path_factory.mktemp("m")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "mixing.md").read_text(), re.DOTALL)
    lines = run("\n".join(blocks), folder)
    assert lines[:4] == ["0 18 2", "1 18 2", "web 360 samples drawn, 0.9 passes", "books 40 samples drawn, 0.4 passes"]
    assert lines[4:6] == ["100 web {'web': 180, 'books': 20}", "500"]
    assert lines[6].startswith("mix      stratified")
    assert lines[7:] == ["200"]


@pytest.mark.slow
def test_the_page_about_growing_runs(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The program of the page about growing datasets prints what the page says."""
    folder = tmp_path_factory.mktemp("g")
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "growing.md").read_text(), re.DOTALL)
    assert run(program, folder) == ["0 20 True", "1 20 True", "2 20 True"]


@pytest.mark.slow
def test_the_page_about_rows_runs(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The program of the page about rows prints what the page says, and that of the migration page uses its texts."""
    folder = tmp_path_factory.mktemp("r")
    for page in ("sequences.md", "migrate/packers.md"):
        (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
        lines = run(program, folder)
        assert lines == (["300 documents in 67 rows; (4, 1024)"] if page == "sequences.md" else [])


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_documentation_builds_without_a_warning(tmp_path: Path) -> None:
    """Every link and every reference of the documentation leads somewhere: a strict build of MkDocs succeeds."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings_handlers.python")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "StreamingDataLoader" in (tmp_path / "site" / "api" / "index.html").read_text()
