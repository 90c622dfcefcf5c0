"""The files of hosts and editors have the commands and versions of the Makefile and pyproject.toml."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def test_hooks_before_a_commit_are_those_of_make_check() -> None:
    """The pre-commit hooks are the commands of `make check` in order, without advisories, which need the network."""
    check = (ROOT / "Makefile").read_text().partition("\ncheck: ")[2].partition("\n\n")[0]
    commands = re.findall(r"^\t\$\(BIN\)/(.+?)(?: >.*)?$", check, re.MULTILINE)
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [hook["entry"].removeprefix(".venv/bin/") for hook in repository["hooks"]] == commands


def test_the_workflow_tests_every_python_that_is_supported() -> None:
    """The workflow runs `make test` with every supported Python."""
    job = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())["jobs"]["test"]
    supported = re.findall(r"Programming Language :: Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    assert job["strategy"]["matrix"]["python"] == supported
    assert job["steps"][-1]["run"].startswith("make test ")
