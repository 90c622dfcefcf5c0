"""Makes the files of tests/formats/data/jsonl with Python's json, and what it reads of them.

PYTHONPATH=. python tests/formats/make/json_lines.py [FOLDER] [LINES]
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from tests.formats.summary import write_expected

ROOT = Path(__file__).parents[1] / "data" / "jsonl"


def value(number: int, drawn: random.Random) -> object:
    """Draws members of every type; strings with what must be escaped, and line ends that are none."""
    if number % 13 == 12:
        return [number, {"a": None}]
    return {
        "text": "".join(drawn.choice('aü"\\\n\u2028€𝄞 ') for _ in range(number * 17 % 300)),
        "id": number,
        "score": number / 3,
        "tags": ["a", [number, None, True]],
        "nested": {"a": {"b": [1.5, -2]}, "": "empty name"},
        "none": None,
    }


def line(number: int, drawn: random.Random) -> str:
    found = value(number, drawn)
    if isinstance(found, dict) and number % 3 == 0:
        found = {"__key__": f"key {number}", **found}
    text = json.dumps(found, ensure_ascii=number % 2 == 0)
    return f"  {text}\r" if number % 5 == 0 else text


def told(text: str) -> dict[str, object]:
    found = json.loads(text)
    return found if isinstance(found, dict) else {"json": found}


def main(root: Path, lines: int) -> None:
    root.mkdir(parents=True, exist_ok=True)
    drawn = random.Random(2)
    made = [line(number, drawn) for number in range(lines)]
    # A byte order mark, empty and blank lines, and no newline at the end.
    (root / "a.jsonl").write_text("\n".join(["\ufeff" + made[0], "", *made[1 : lines // 2], " \t\r", "", ""]))
    (root / "b.jsonl").write_text("\n".join(made[lines // 2 :]))
    texts = [text for name in "ab" for text in (root / f"{name}.jsonl").read_text("utf-8-sig").split("\n")]
    write_expected(root, [told(text) for text in texts if text.strip()])


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT, int(sys.argv[2]) if len(sys.argv) > 2 else 60)
