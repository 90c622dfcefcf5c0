"""The tour names files that exist, its paths are short, and no path visits a file twice."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOUR = (ROOT / "docs/tour.md").read_text()
CONCEPTS = (ROOT / "docs/architecture.md").read_text()
FILE = re.compile(r"`(streamer/[\w/]+(?:\.py|/))`")


def test_every_file_exists():
    """Every file that the tour names exists."""
    named = FILE.findall(TOUR)
    assert len(named) > 60
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_no_path_visits_a_file_twice():
    """Each path of the tour visits a file once."""
    paths = TOUR.partition("## Seven paths")[2].partition("## Where")[0].split("### ")[1:]
    assert len(paths) == 7
    for path in paths:
        files = FILE.findall(path)
        assert len(files) >= 6
        assert len(files) == len(set(files)), path.splitlines()[0]


def test_the_walk_to_the_first_batch_is_short():
    """A reader who follows a rank from the url to its first batch opens at most 20 files."""
    walk = TOUR.partition("### A dataset: from its url to the first batch")[2].partition("### ")[0]
    assert 10 < len(FILE.findall(walk)) <= 20


def test_a_chunk_passes_six_stages_and_few_files():
    """A reader who follows a chunk through its six stages opens at most 16 files; the wings have their own table."""
    walk = TOUR.partition("### A chunk: from wanted to leased")[2].partition("### ")[0]
    trunk, _, wings = walk.partition("Through a wing:")
    stages = re.findall(r"^\| (\d) \w+ \|", trunk, re.MULTILINE)
    assert stages == ["1", "2", "3", "4", "5", "6"]
    assert 12 < len(FILE.findall(trunk)) <= 16
    assert not re.search(r"streamer/(peers|recode|engine/processes)/", trunk)
    assert all(re.search(r"streamer/(peers|recode|engine/processes)/", name) for name in FILE.findall(wings))


def test_the_table_of_words_is_short():
    """The table of words has at most 45 rows: words of one file are explained in that file."""
    table = CONCEPTS.partition("| word | meaning |\n| --- | --- |\n")[2].partition("\n\n")[0]
    words = [word.strip() for row in table.splitlines() for word in row.split("|")[1].split(",")]
    assert 30 < len(table.splitlines()) <= 45
    assert len(words) == len(set(words))


def test_packages_name_files_that_exist():
    """The files that a package's docstring names are in its folder."""
    missing = []
    named = 0
    for package in sorted((ROOT / "streamer").rglob("__init__.py")):
        for line in (ast.get_docstring(ast.parse(package.read_text())) or "").splitlines():
            if line.partition(" ")[0].endswith(".py"):
                files = re.findall(r"(?<![\w/.])(\w+\.py)\b", line)
                named += len(files)
                missing += [f"{package.parent.name}: {file}" for file in files if not (package.parent / file).exists()]
    assert named > 60
    assert missing == []
