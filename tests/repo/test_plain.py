"""Names and sentences follow the rules of CONTRIBUTING, as far as a script can see them; the counts may only fall."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import streamer

ROOT = Path(streamer.__file__).parent

_PARTICIPLE = re.compile(
    r"^(?:\w+ed|found|made|given|shown|known|drawn|taken|written|held|kept|chosen|built|sent|lost|left|bound|read_\w+|"
    r"missing|together|gone|done|\w+ing)(?:_[a-z]+)?$"
)
_NO_PARTICIPLE = re.compile(
    r"^(?:need|embed|feed|speed|seed|exceed|proceed|read|add|ring|string|encoding|listing|packing|padding|setting|timing|"
    r"loading|mapping|nothing|anything|warning)(?:_|$)"
)
_PREPOSITION = re.compile(
    r"^(?:of|by|as|in|at|with|without|among|behind|beside|under|over|on|for|within|beyond|through|until|since)(?:_|$)"
)
_ENTRY = re.compile(r"^\s+[a-z_]\w*: (?:of|as|in|by|at|to|for|with|from|on|until|since)\b", re.MULTILINE)
_SENTINEL = re.compile(r'(?:; |, |\. |^)(?:None|False|True|""|0|-1): ')
_INSIDE_A_SENTENCE = re.compile(
    r"^# (?:Of|As|Without|Not|For|Between|Before|After|With|Only|Also|Where|What|Whom|Those|Their|Its|Until|From|Below|"
    r"By|In|Under|Through|Such|One|None|Each) "
)


class Source:
    """Nodes of all files that a rule looks at, each with its place; the trees are walked once."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self.functions: list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]] = []
        self.classes: list[tuple[str, ast.ClassDef]] = []
        self.calls: list[tuple[str, ast.Call]] = []
        self.assignments: list[tuple[str, ast.Assign]] = []
        for path in sorted(ROOT.rglob("*.py")):
            file = str(path.relative_to(ROOT))
            text = path.read_text()
            self.lines += ((f"{file}:{number}", line.strip()) for number, line in enumerate(text.splitlines(), 1))
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    self.functions.append((f"{file}:{node.lineno} {node.name}", node))
                elif isinstance(node, ast.ClassDef):
                    self.classes.append((f"{file}:{node.lineno}", node))
                elif isinstance(node, ast.Call) and len(node.args) >= 5:
                    self.calls.append((f"{file}:{node.lineno}", node))
                elif isinstance(node, ast.Assign):
                    self.assignments.append((f"{file}:{node.lineno}", node))

    def names(self) -> Iterator[tuple[str, str]]:
        """Yields the names of functions, but of properties, which are nouns, and of those that Python names."""
        for place, node in self.functions:
            if not node.name.startswith("__") and not any(
                "property" in ast.unparse(one) for one in node.decorator_list
            ):
                yield place, node.name.strip("_")


@pytest.fixture(scope="module")
def source() -> Source:
    """Reads all files of the package once for this module."""
    return Source()


def _participles(source: Source) -> Iterator[str]:
    for place, name in source.names():
        if _PARTICIPLE.match(name) and not _NO_PARTICIPLE.match(name):
            yield place


def _prepositions(source: Source) -> Iterator[str]:
    return (place for place, name in source.names() if _PREPOSITION.match(name))


def _fragments(source: Source) -> Iterator[str]:
    for place, node in source.functions:
        text = ast.get_docstring(node) or ""
        if _SENTINEL.search(text) or _ENTRY.search(text):
            yield place


def _semicolons(source: Source) -> Iterator[str]:
    for place, node in source.functions:
        if (ast.get_docstring(node) or "").count(";") > 1:
            yield place


def _shared_class_names(source: Source) -> Iterator[str]:
    counts = Counter(node.name for _, node in source.classes)
    return (f"{place} {node.name}" for place, node in source.classes if counts[node.name] > 1)


def _positional_calls(source: Source) -> Iterator[str]:
    for place, node in source.calls:
        if not any(isinstance(one, ast.Starred) for one in node.args):
            yield f"{place} {ast.unparse(node.func)}"


def _tuples(source: Source) -> Iterator[str]:
    for place, node in source.assignments:
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                swaps = {*map(ast.unparse, target.elts)} & {*map(ast.unparse, node.value.elts)}
                if len(target.elts) == len(node.value.elts) and not swaps:
                    yield f"{place} {ast.unparse(node)}"


def _comments_inside_a_sentence(source: Source) -> Iterator[str]:
    before = ""
    for place, line in source.lines:
        if _INSIDE_A_SENTENCE.match(line) and not before.startswith("#"):
            yield f"{place} {line}"
        before = line


Rule = Callable[[Source], Iterator[str]]
# What is left; a figure here is lowered with what it counts, and never raised.
CEILINGS: dict[Rule, int] = {
    _participles: 40,
    _prepositions: 15,
    _fragments: 1,
    _semicolons: 0,
    _shared_class_names: 0,
    _positional_calls: 51,
    _tuples: 42,
    _comments_inside_a_sentence: 4,
}


@pytest.mark.parametrize("find", CEILINGS, ids=lambda find: find.__name__.strip("_"))
def test_there_are_no_more_of_them(find: Rule, source: Source) -> None:
    """Each rule has at most its ceiling of violations, which falls with them.
    Functions are named by verbs, sentences stand alone, class names are unique, a line has one assignment."""
    found = list(find(source))
    rooms = Counter(place.split("/")[0] for place in found)
    assert len(found) <= CEILINGS[find], f"{len(found)} in {dict(rooms)}:\n" + "\n".join(found)
    assert len(found) > CEILINGS[find] - 10, f"{len(found)} are left: lower the ceiling to that"
