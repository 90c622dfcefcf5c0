"""What can be counted about the style of the package's code."""

from __future__ import annotations

import ast
import re
import statistics
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import streamer

ROOT = Path(streamer.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))


# For this module only: 1.4 million objects, which each garbage collection of later tests would pass through in 2 s.
@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.Module]:
    """Parses all files of the package once for this module."""
    return {path: ast.parse(path.read_text()) for path in FILES}


def _functions(trees: dict[Path, ast.Module]) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", node


def _body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Counts the lines of the body without the docstring."""
    body = function.body
    if ast.get_docstring(function) is not None:
        body = body[1:]
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_no_file_is_longer_than_450_lines() -> None:
    """No file of the package is longer than 450 lines: a file is one subject."""
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in FILES}
    assert {name: length for name, length in lengths.items() if length > 450} == {}


def test_no_folder_has_more_than_20_files() -> None:
    """No folder of the package has more than 20 files, so that a reader can guess a file's name."""
    counts = Counter(str(path.parent.relative_to(ROOT)) for path in FILES)
    assert {name: count for name, count in counts.items() if count > 20} == {}


def test_functions_are_small(trees: dict[Path, ast.Module]) -> None:
    """No function has more than 60 lines, and nine in ten have fewer than 25."""
    lengths = {name: _body_lines(node) for name, node in _functions(trees)}
    assert {name: length for name, length in lengths.items() if length > 60} == {}
    assert statistics.quantiles(lengths.values(), n=10)[-1] < 25


def test_every_room_says_what_it_is(trees: dict[Path, ast.Module]) -> None:
    """Every package has a docstring."""
    silent = [path for path, tree in trees.items() if path.name == "__init__.py" and not ast.get_docstring(tree)]
    assert silent == []


def test_nothing_is_left_to_do() -> None:
    """The package contains no notes of work left to do."""
    words = ("TO" + "DO", "FIX" + "ME", "XX" + "X")
    assert [path for path in FILES if any(word in path.read_text() for word in words)] == []


def test_the_environment_is_read_in_one_place(trees: dict[Path, ast.Module]) -> None:
    """Only config.py reads settings from the environment; the other files listed hand it on to children or loaders."""
    readers = {
        str(path.relative_to(ROOT))
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr in ("getenv", "environb"))
        or (isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ")
        or (isinstance(node, ast.Call) and ast.unparse(node.func) == "os.environ.get")
    }  # fmt: skip
    assert readers <= {
        "config.py",
        "batches/workers/fork_protocol.py",
        "batches/workers/fork_server.py",
        "batches/workers/fork_server_main.py",
        "batches/workers/worker.py",
        "engine/processes/__main__.py",
        "engine/processes/pool.py",
        "recode/sandbox.py",
    }


# Metaphors that the field's terms have replaced (docs/architecture.md, table of words), as parts of identifiers.
_RETIRED_WORDS = """
aboard alone bell bequeath board born boss bury course crew cure cures deadly death deaths desk died dies employer
flights foresight glance guilty hear heard hears hire hired hopeless hungry judge judged kick kicked landed leaf
leaves lend lends lent neighbour neighbours obituary passenger passengers patience said say says scene scenes seat
seated seats shelf staff standing stands stories story straight strike strikes tell tells thaw told verdict verdicts
"""
_RETIRED = frozenset(_RETIRED_WORDS.split())
_RETIRED_NAMES = frozenset(["at_once", "hand_over", "hang_up", "head_of_line"])


def _defined_names(tree: ast.AST) -> Iterator[str]:
    """Yields the identifiers that a module defines, not those that it uses from others."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def test_identifiers_are_free_of_retired_words(trees: dict[Path, ast.Module]) -> None:
    """No identifier of the package contains a retired metaphor."""
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path, tree in trees.items()
        for name in _defined_names(tree)
        if name.strip("_").lower() in _RETIRED_NAMES
        or any(word.lower() in _RETIRED for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name))
    }
    assert found == set()


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yields comments and strings of a file, with their lines."""
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING):
                yield token.start[0], token.string


def test_texts_have_technical_subjects() -> None:
    """No docstring, comment or message of the package has an indefinite person as its subject."""
    words = re.compile(r"\b(nobody|somebody|whoever|anybody)\b", re.IGNORECASE)
    found = [f"{path.relative_to(ROOT)}:{line}" for path in FILES for line, text in _texts(path) if words.search(text)]
    assert found == []
