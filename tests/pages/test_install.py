"""The install lines that README prints, and the advice of the errors, with the index that pip is configured for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from streamer.version import VERSION
from tests.pages.environments import LATER, install_lines

pytestmark = [pytest.mark.pages, pytest.mark.timeout(1800)]


def pip(python: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(python), "-m", "pip", *command], capture_output=True, text=True, check=False, cwd=python.parent
    )


def test_the_line_for_a_clone_installs_this_version(fresh: Path) -> None:
    """Without the tree on its path."""
    assert f"Version: {VERSION}\n" in pip(fresh, "show", "streamer-data").stdout


def test_the_line_for_the_index_is_marked_until_it_works(fresh: Path) -> None:
    """A package that is there is not announced, and one that is not there is not promised."""
    (line,) = (line for line in install_lines() if ".[" not in line)
    found = pip(fresh, "install", "--dry-run", "--ignore-installed", "--no-deps", "streamer-data")
    assert (found.returncode != 0) == (LATER in line), found.stderr


def test_the_advice_of_an_error_adds_an_extra(fresh: Path) -> None:
    """To what is installed already, wherever it came from; the index need not have the package itself."""
    found = pip(fresh, "install", "--dry-run", "streamer-data[cli,serve]")
    assert found.returncode == 0, found.stderr
    assert "rich" in found.stdout
