"""The page on figures has a row with a unit for every field of the statistics, and no other row."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from streamer.loader.stall.stats import EngineView, GrowingStats, LoaderStats, MemberStats, PackingStats, PartView
from streamer.service.metrics import DEFINITIONS

PAGE = (Path(__file__).parents[2] / "docs" / "statistics.md").read_text()


def read_rows(heading: str) -> list[list[str]]:
    """Returns the cells of the table below a heading, without those of the table's head."""
    section = re.split(r"^#+ ", PAGE.partition(f"# {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def named(heading: str) -> list[str]:
    """Returns the names in the first cells of a table."""
    return [name for row in read_rows(heading) for name in re.findall(r"`(\w+)`", row[0])]


@pytest.mark.parametrize(
    ("heading", "types", "properties"),
    [
        ("Loader", [LoaderStats], ["wait_share"]),
        ("Engine as the loader sees it", [EngineView], []),
        ("Members of a mix", [MemberStats, PartView], []),
        ("Growing datasets", [GrowingStats], []),
        ("Packed rows", [PackingStats], ["padding", "cost_spread"]),
    ],
)
def test_every_field_of_a_dataclass_has_one_row(heading: str, types: list[Any], properties: list[str]) -> None:
    """Each field of a statistics dataclass has one row, so that an added, renamed or removed one changes its table."""
    expected = [field.name for kind in types for field in fields(kind)] + properties
    assert sorted(named(heading)) == sorted(expected)
    assert [row for row in read_rows(heading) if len(row) != 3] == []


def test_every_metric_is_in_the_table() -> None:
    """The rows of the metrics are those of the definitions, in their order."""
    rows = [f"`{one.name}` | {', '.join(one.labels)} | {one.help} | {one.stability}" for one in DEFINITIONS]
    assert [" | ".join(row) for row in read_rows("Metrics")] == rows
