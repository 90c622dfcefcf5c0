"""The quickstart runs as it is printed, and the documentation builds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_quickstart_runs_block_by_block(tmp_path_factory: pytest.TempPathFactory) -> None:
    """All python blocks of the first page, in order, in one process."""
    folder = tmp_path_factory.mktemp("q")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "index.md").read_text(), re.DOTALL)
    (folder / "quickstart.py").write_text("\n".join(blocks))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STREAMER_")}
    done = subprocess.run(
        [sys.executable, "quickstart.py"],
        cwd=folder,
        env=environment | {"STREAMER_RUNTIME_DIR": str(folder / "run"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "64 ['cats', 'dogs']"
    assert lines[2:4] == [f"{epoch} torch.Size([16, 64, 64, 3]) torch.uint8 torch.Size([16])" for epoch in (0, 1)]
    assert lines[5] == "2 batches are left of the epoch"
    assert lines[-1] == "64 samples"


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_documentation_builds_without_a_warning(tmp_path: Path) -> None:
    """Every link and every reference leads somewhere."""
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
