"""The install lines of README and the advice of errors, with the real pip and the index that it is configured for."""

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
    """README's install line for a clone installs this version, without the tree on its path."""
    assert f"Version: {VERSION}\n" in pip(fresh, "show", "streamer-data").stdout


def test_the_line_for_the_index_is_marked_until_it_works(fresh: Path) -> None:
    """README's install line for the index is marked as one for later exactly as long as the package is not there."""
    (line,) = (line for line in install_lines() if ".[" not in line)
    found = pip(fresh, "install", "--dry-run", "--ignore-installed", "--no-deps", "streamer-data")
    assert (found.returncode != 0) == (LATER in line), found.stderr


def test_the_advice_of_an_error_adds_an_extra(fresh: Path) -> None:
    """`pip install 'streamer-data[EXTRA]'`, as errors advise, adds an extra to what is installed already.

    The index need not have the package itself.
    """
    found = pip(fresh, "install", "--dry-run", "streamer-data[cli,serve]")
    assert found.returncode == 0, found.stderr
    assert "rich" in found.stdout
