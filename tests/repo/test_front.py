"""What a newcomer reads first fits the code: README's commands and install lines, the version, the promises."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from streamer.cache.folder import LAYOUT_VERSION
from streamer.errors import StateError
from streamer.formats import chunkfile
from streamer.manifest import layout
from streamer.order.mix.spec import MIX_FORMAT
from streamer.order.spec import ORDER_FORMAT
from streamer.order.state import STATE_FORMAT, check_format
from streamer.peers import protocol
from streamer.version import VERSION
from streamer.wire.messages import PROTOCOL
from tests.pages.environments import LATER, install_lines

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
COMPATIBILITY = (ROOT / "docs" / "compatibility.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_commands_for_a_clone_come_first() -> None:
    """README's commands for a clone come before the installation and are targets of the Makefile."""
    printed = re.findall(r"^make (\w+) +# ", README, re.MULTILINE)
    assert printed == ["demo", "test"]
    assert README.index("make demo") < README.index("pip install")
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(printed) <= set(targets)
    assert re.search(r"^make test\b", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)


def test_the_install_lines_are_those_that_can_work() -> None:
    """README's install lines name extras that exist, and the line for the index is marked as later.
    `make test-pages` runs them."""
    clone, index = install_lines()
    assert (LATER in clone, LATER in index) == (False, True)
    for line in (clone, index):
        (extras,) = re.findall(r"\[([a-z0-9,]+)\]", line)
        assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
    assert '".[' in clone
    assert f'"{PROJECT["name"]}[' in index


def test_pictures_exist() -> None:
    """The images that README shows exist."""
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)
    assert pictures
    assert [name for name in pictures if not (ROOT / name).exists()] == []


def test_the_version_is_one() -> None:
    """The package, the newest changes and the chart have the same version."""
    newest = re.findall(r"^## ([\d.]+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    chart = yaml.safe_load((ROOT / "deploy" / "helm" / "streamer" / "Chart.yaml").read_text())
    assert {VERSION} == {newest, chart["version"], chart["appVersion"]}
    assert "version" in PROJECT["dynamic"]


def test_the_promise_names_the_formats_that_there_are() -> None:
    """The compatibility page has a row with the current version of each thing that is written."""
    table = COMPATIBILITY.partition("| what is written |")[2].partition("## ")[0]
    rows = dict(re.findall(r"^\| ([^|]+) \| (\d+)[^|]* \|", table, re.MULTILINE))
    expected = {
        'state (`"format"`)': STATE_FORMAT,
        "order of a dataset": ORDER_FORMAT,
        "order of a mix": MIX_FORMAT,
        "manifest": layout.VERSIONS[-1],
        "cache folder": LAYOUT_VERSION,
        "chunk file": chunkfile.VERSION,
        "protocol of engine and client": PROTOCOL,
        "protocol between engines that share caches": protocol.PROTOCOL,
    }
    assert {name: int(version) for name, version in rows.items()} == expected


def test_the_classifiers_are_the_pythons_that_were_run() -> None:
    """The classifiers are the Python versions whose rows of the compatibility page passed."""
    rows = re.findall(r"^\| (3\.\d+)\.\d+ \|.*\| highest \|(.*)$", COMPATIBILITY, re.MULTILINE)
    assert [row for _, row in rows if "FAILED" in row or "failed" in row] == []
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert sorted(named) == sorted({version for version, _ in rows})


def test_what_is_installed_always_is_explained() -> None:
    """The compatibility page has a row for each hard dependency."""
    table = COMPATIBILITY.partition("| what is installed always |")[2]
    named = re.findall(r"^\| (\w[\w-]*) \|", table, re.MULTILINE)
    assert named == [re.split(r"[>;]", one)[0] for one in PROJECT["dependencies"]]


@pytest.mark.parametrize("saved", [{"format": 2}, {}])
def test_a_state_of_another_format_says_what_reads_it(saved: Mapping[str, object]) -> None:
    """A state of another format raises StateError with this version and the page that lists the formats of others."""
    with pytest.raises(StateError, match=rf"streamer {VERSION} reads format 1: load it with .*compatibility\.md"):
        check_format(saved)


def test_the_release_checklist_names_targets_that_there_are() -> None:
    """Every `make` command of CONTRIBUTING is a target of the Makefile."""
    named = set(re.findall(r"(?:^|`)make ([a-z][\w-]*)", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE))
    printed = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"^make ([\w-]+)", printed, re.MULTILINE))
    assert {"wheel", "test-pythons", "test-pages"} <= named
    assert named - known == set()
