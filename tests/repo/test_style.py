"""What can be counted about the style of the code."""

from __future__ import annotations

import ast
import statistics
from pathlib import Path

import streamer

ROOT = Path(streamer.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
TREES = {path: ast.parse(path.read_text()) for path in FILES}
FUNCTIONS = [
    (f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", node)
    for path, tree in TREES.items()
    for node in ast.walk(tree)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
]


def _body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of the body without the docstring."""
    body = function.body
    if ast.get_docstring(function) is not None:
        body = body[1:]
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_no_file_is_longer_than_500_lines() -> None:
    """A longer file has two subjects."""
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in FILES}
    assert {name: length for name, length in lengths.items() if length > 500} == {}


def test_functions_are_small() -> None:
    """None over 60 lines, a median of at most 6, nine in ten under 25."""
    lengths = {name: _body_lines(node) for name, node in FUNCTIONS}
    assert {name: length for name, length in lengths.items() if length > 60} == {}
    assert statistics.median(lengths.values()) <= 6
    assert statistics.quantiles(lengths.values(), n=10)[-1] < 25


def test_every_room_says_what_it_is() -> None:
    """Each package has a docstring."""
    silent = [path for path, tree in TREES.items() if path.name == "__init__.py" and not ast.get_docstring(tree)]
    assert silent == []


def test_nothing_is_left_to_do() -> None:
    """No notes to self in the product."""
    words = ("TO" + "DO", "FIX" + "ME", "XX" + "X")
    assert [path for path in FILES if any(word in path.read_text() for word in words)] == []


def test_the_environment_is_read_in_one_place() -> None:
    """config.py reads settings; what a loader hands to its own workers is no setting."""
    readers = {
        str(path.relative_to(ROOT))
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr in ("getenv", "environb"))
        or (isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ")
        or (isinstance(node, ast.Call) and ast.unparse(node.func) == "os.environ.get")
    }  # fmt: skip
    assert readers <= {
        "config.py",
        "loader/workers/fork_server.py",
        "loader/workers/fork_server_main.py",
        "loader/workers/worker_process.py",
    }
