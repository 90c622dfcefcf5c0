"""The tour names files that exist, and no path visits a file twice."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOUR = (ROOT / "docs/tour.md").read_text()
FILE = re.compile(r"`(streamer/[\w/]+(?:\.py|/))`")


def test_every_file_exists():
    """Renames reach the tour."""
    named = FILE.findall(TOUR)
    assert len(named) > 60
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_no_path_visits_a_file_twice():
    """Each section between two headings is one path."""
    paths = TOUR.partition("## Six paths")[2].partition("## Where")[0].split("### ")[1:]
    assert len(paths) == 6
    for path in paths:
        files = FILE.findall(path)
        assert len(files) >= 6
        assert len(files) == len(set(files)), path.splitlines()[0]
