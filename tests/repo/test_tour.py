"""The tour names files and names that exist, and no path visits a file twice."""

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


def test_every_name_exists():
    """Of the tour each name in backticks, of the other pages those that begin with streamer."""
    files = list(ROOT.glob("streamer/**/*.py"))
    words = {path.stem for path in files}.union(*(re.findall(r"\w+", path.read_text()) for path in files))
    named = re.findall(r"`([A-Za-z_][\w.]*)(?:\(\))?`", TOUR)
    named += [
        name for page in ROOT.glob("docs/**/*.md") for name in re.findall(r"`(streamer\.[\w.]+)`", page.read_text())
    ]
    assert len(named) > 15
    assert [name for name in named if not words.issuperset(name.split("."))] == []


def test_no_path_visits_a_file_twice():
    """Each section between two headings is one path."""
    paths = TOUR.partition("## Six paths")[2].partition("## Where")[0].split("### ")[1:]
    assert len(paths) == 6
    for path in paths:
        files = FILE.findall(path)
        assert len(files) >= 6
        assert len(files) == len(set(files)), path.splitlines()[0]
