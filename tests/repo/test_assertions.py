"""Each test can fail for what its name says: it asserts something, and no assertion of it always holds."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
# What raises if something is wrong, beside what tests themselves define.
CHECKS = {"raises", "warns", "fail", "check=True", "run_state_machine_as_test", "check_options", "check_keys"}
# Errors that many causes have: without `match` another cause passes as well.
BROAD = {
    *("Exception", "OSError", "ValueError", "TypeError", "StreamerError", "ConfigError", "ManifestError", "StoreError"),
    *("ManifestCorruptError", "DecodeError", "RecodeError", "ProtocolError", "CacheError", "StateError"),
    "EngineUnavailableError",
}
# Tests whose promise is that nothing is raised.
PROMISE_NO_ERROR = {
    "repo/test_pages.py::test_programs_are_python": "a program that is not Python does not compile",
    "unit/loader/test_dataloader.py::test_garbage_collection_closes": "tests/conftest.py looks for what is left over",
    "unit/service/test_admission.py::test_other_services_serve_all_that_may_connect": "the test before has refusals",
}


@dataclass
class Found:
    """What is in a function, without the tree, which would keep a million objects.

    Attributes:
        place: the file and the name, as pytest writes them.
        name: of the function.
        called: names of what is called; "check=True" for a program whose exit status is looked at.
        asserted: the expressions that are asserted.
        raises: whether there is a statement `raise`.
        careless: lines that expect an error of many causes and look at nothing of it.
    """

    place: str
    name: str
    called: set[str] = field(default_factory=set)
    asserted: list[ast.expr] = field(default_factory=list)
    raises: bool = False
    careless: list[int] = field(default_factory=list)

    def note(self, node: ast.AST) -> None:
        """Notes a node of the function."""
        if isinstance(node, ast.Assert):
            self.asserted.append(node.test)
        elif isinstance(node, ast.Raise):
            self.raises = True
        elif isinstance(node, ast.Call):
            self.called.add(node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", ""))
        elif isinstance(node, ast.keyword):
            if node.arg == "check" and isinstance(node.value, ast.Constant) and node.value.value is True:
                self.called.add("check=True")
        elif isinstance(node, ast.withitem) and _is_careless(node):
            self.careless.append(node.context_expr.lineno)


def _is_careless(item: ast.withitem) -> bool:
    """Whether a context expects an error of many causes, and looks neither at its text nor keeps it."""
    call = item.context_expr
    if not isinstance(call, ast.Call) or ast.unparse(call.func) != "pytest.raises" or item.optional_vars is not None:
        return False
    names = {one.id for one in ast.walk(call.args[0]) if isinstance(one, ast.Name)}
    return bool(names & BROAD) and not any(word.arg == "match" for word in call.keywords)


@pytest.fixture(scope="module")
def functions() -> list[Found]:
    """Reads all files below tests/ once for this module."""
    found = []
    for path in sorted(TESTS.rglob("*.py")):
        place = path.relative_to(TESTS)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.append(Found(f"{place}::{node.name}", node.name))
                for one in ast.walk(node):
                    found[-1].note(one)
    return found


def _tests(functions: list[Found]) -> Iterator[Found]:
    return (one for one in functions if one.name.startswith("test_"))


def test_every_test_asserts(functions: list[Found]) -> None:
    """Every test asserts something, by itself or by a helper, but those whose promise is that nothing is raised."""
    # By the name alone: a helper of another file with the same name counts as well.
    asserting = CHECKS | {one.name for one in functions if one.asserted or one.raises}
    before = 0
    while before < len(asserting):
        before = len(asserting)
        asserting |= {one.name for one in functions if one.called & asserting}
    found = {one.place for one in _tests(functions) if not (one.asserted or one.raises or one.called & asserting)}
    assert found == PROMISE_NO_ERROR.keys()


def _always_holds(test: ast.expr) -> bool:
    """Whether an assertion holds for any program: of a constant, a tuple, or a name that is compared with itself."""
    if isinstance(test, ast.Constant | ast.Tuple | ast.Lambda | ast.GeneratorExp):
        return True
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
        return any(map(_always_holds, test.values))
    if not isinstance(test, ast.Compare) or any(isinstance(one, ast.Call | ast.Subscript) for one in ast.walk(test)):
        return False
    return any(first == second for first, second in pairwise(map(ast.dump, (test.left, *test.comparators))))


def test_no_assertion_always_holds(functions: list[Found]) -> None:
    """No test asserts a constant, a tuple, or that a name equals itself."""
    assert [(one.place, ast.unparse(test)) for one in functions for test in one.asserted if _always_holds(test)] == []


def _says_little(test: ast.expr) -> bool:
    """Whether an assertion holds for all but a few wrong values."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.comparators[0], ast.Constant):
        value = test.comparators[0].value
        return (isinstance(test.ops[0], ast.GtE) and value == 0) or (
            isinstance(test.ops[0], ast.IsNot) and value is None
        )
    return isinstance(test, ast.Call) and ast.unparse(test.func) in {"hasattr", "callable"}


def test_each_test_has_an_assertion_that_says_something(functions: list[Found]) -> None:
    """No test asserts only that a value is there, or that a number is not negative."""
    assert [
        one.place
        for one in _tests(functions)
        if one.asserted and all(map(_says_little, one.asserted)) and "raises" not in one.called
    ] == []


def test_what_is_raised_is_looked_at(functions: list[Found]) -> None:
    """A test that expects an error of many causes looks at its text, by `match` or by the error that it keeps."""
    assert [(one.place, line) for one in functions for line in one.careless] == []


@pytest.mark.parametrize(
    ("text", "always", "little"),
    [
        ("x == x", True, False),
        ("(x == 1, 'text')", True, False),
        ("ok or 'text'", True, False),
        ("x >= 0", False, True),
        ("x is not None", False, True),
        ("draw(1) == draw(1)", False, False),
        ("x == y", False, False),
    ],
)
def test_the_rules_themselves(text: str, always: bool, little: bool) -> None:
    """The rules of this file find what they are about, and leave a function that is called twice alone."""
    tree = ast.parse(text, mode="eval").body
    assert (_always_holds(tree), _says_little(tree)) == (always, little)
