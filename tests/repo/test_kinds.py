"""Code that serves all kinds of order asks the object that knows its kind, and does not probe the kind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "streamer"
# `mix is None`, and the like: questions after a kind of order, or after what is wrapped around one.
_ABSENT = r"\b(?:mix|mixing|growing|growth|packing|rows|balance)\s+is\s+(?:not\s+)?None"
_SPEC = r"isinstance\([^)]*\b(?:OrderSpec|MixSpec|GrowingSpec|RowSpec|BalanceSpec|UnsetType)\b"
_OBJECT = r"isinstance\([^)]*\b(?:NoPacking|NoBalance|NotGrowing|PlannedRows|SampleRows|NoRounds|NoLevel)\b"
_PROBE = re.compile(rf'{_ABSENT}|{_SPEC}|{_OBJECT}|cast\("(?:OrderSpec|MixSpec|GrowingSpec)"|\.spec\.kind\s*[!=]=')

# Lines that match and ask something else, by what they ask.
ALLOWED = {
    "Whether a report has such figures; its attributes are public, and None where nothing was counted.": {
        "loader/stall/report.py": [
            "if self.packing is not None:",
            "if stats.growing is None or found.engine is None or not step_seconds:",
        ],
    },
    "The one place where a part that specs leave out becomes an object.": {
        "order/level.py": ["return NoLevel() if isinstance(stored, msgspec.UnsetType) else stored"],
        "order/rows/spec.py": ["return NoRowSpec() if isinstance(stored, msgspec.UnsetType) else stored"],
    },
}


def _probes() -> Iterator[tuple[str, str]]:
    """Yields the lines that probe a kind, with their files; comments are left out."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE)
        if "kinds" in name.parts[:-1]:
            continue
        for line in path.read_text().splitlines():
            if _PROBE.search(line) and not line.lstrip().startswith("#"):
                yield str(name), line.strip()


def test_kinds_are_asked_for_in_their_folders_only() -> None:
    """Kinds of order are probed only in their folders `kinds/` and in the listed lines, so a new kind is one file."""
    allowed = {(name, line) for files in ALLOWED.values() for name, lines in files.items() for line in lines}
    found = set(_probes())
    assert found - allowed == set()
    # What is not there any more leaves the list.
    assert allowed - found == set()
