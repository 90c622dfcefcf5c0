"""Docstrings can be read alone: a module says what it is for and who uses it, a test says what holds."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamer import errors

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "streamer"
NAMED = re.compile(r"`([\w/.-]+(?:\.py|/))`")
USERS = re.compile(r"Used by ([^.]*(?:\.py`[^.]*)*)\.(?:\s|$)")

# First words that need the name of the test, or the sentence before, to be understood.
_FRAGMENT = re.compile(r"(?:Also|And|Are|But|Does|Has|Have|Is|It|Its|Nor|Not|Or|Say|Says|Than|Their|They|Which|Who)\b")
_FEWEST_WORDS = 5
# Names of the errors of streamer, each with those of its base classes.
BASES = {
    name: frozenset(base.__name__ for base in kind.__mro__ if base is not object)
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.StreamerError)
}
# A docstring that leaves errors to another one.
ELSEWHERE = re.compile(r"[Ss]ee `|\bas `|\bSee\b")


def module_docstrings() -> Iterator[tuple[Path, str]]:
    """Yields each module of the package with its docstring, without line breaks."""
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path, " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split())


def find_named(name: str, module: Path) -> Path | None:
    """Returns what a docstring names from its own folder, its room, the package or the repository."""
    room = PACKAGE / module.relative_to(PACKAGE).parts[0]
    for base in (module.parent, room, PACKAGE, ROOT):
        if (base / name).exists():
            return base / name
    return None


def test_docstrings_name_files_that_exist() -> None:
    """Each path in backquotes in the docstring of a module is that of a file or a folder."""
    named = [(path, name) for path, text in module_docstrings() for name in NAMED.findall(text)]
    assert len(named) > 300
    assert [f"{path.relative_to(ROOT)}: {name}" for path, name in named if find_named(name, path) is None] == []


def test_users_that_a_docstring_names_use_the_module() -> None:
    """Each file or folder that follows "Used by" in the docstring of a module has the module's name in its code."""
    checked = 0
    wrong = []
    for path, text in module_docstrings():
        stem = path.parent.name if path.name == "__init__.py" else path.stem
        for sentence in USERS.findall(text):
            for name in NAMED.findall(sentence):
                user = find_named(name, path)
                files = [user] if user is not None and user.is_file() else (user or ROOT / "none").rglob("*.py")
                checked += 1
                if not any(re.search(rf"\b{stem}\b", file.read_text()) for file in files if file != path):
                    wrong.append(f"{path.relative_to(ROOT)}: {name}")
    assert checked > 100
    assert wrong == []


def find_direct_raises(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Returns the errors of streamer that the body of a function makes and raises, and does not catch itself."""
    raised: set[str] = set()

    def walk(node: ast.AST, caught: frozenset[str]) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            return
        if isinstance(node, ast.Try):
            types = [handler.type for handler in node.handlers if handler.type is not None]
            names = {name.id for each in types for name in ast.walk(each) if isinstance(name, ast.Name)}
            for statement in node.body:
                walk(statement, caught | names)
            for child in (*node.handlers, *node.orelse, *node.finalbody):
                walk(child, caught)
            return
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
            name = node.exc.func.id
            if name in BASES and not BASES[name] & caught:
                raised.add(name)
        for child in ast.iter_child_nodes(node):
            walk(child, caught)

    for statement in function.body:
        walk(statement, frozenset())
    return raised


def find_unnamed_errors(scope: ast.Module | ast.ClassDef) -> Iterator[str]:
    """Yields the public functions of a module or class whose docstrings do not name an error that they raise."""
    of_scope = ast.get_docstring(scope) or ""
    for node in scope.body:
        if isinstance(node, ast.ClassDef):
            yield from find_unnamed_errors(node)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.name in ("__init__", "__post_init__"):
            text = f"{of_scope}\n{ast.get_docstring(node) or ''}"
        elif node.name.startswith("_") or not (text := ast.get_docstring(node) or ""):
            continue
        if scope.name.startswith("_") if isinstance(scope, ast.ClassDef) else False:
            continue
        missing = [name for name in find_direct_raises(node) if not any(base in text for base in BASES[name])]
        if missing and not ELSEWHERE.search(text):
            yield f"{node.lineno} {node.name}: {', '.join(missing)}"


def test_docstrings_name_the_errors_that_a_function_raises() -> None:
    """The docstring of a public function, or of its class, names each error that the function itself makes and raises.

    One that says "see", or "as", another function leaves them to the docstring of that one.
    """
    found = [
        f"{path.relative_to(ROOT)}:{place}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for place in find_unnamed_errors(ast.parse(path.read_text()))
    ]
    assert not found, "\n".join(found)


def find_fragments(path: Path) -> Iterator[str]:
    """Yields the tests of a file whose docstrings cannot be read alone."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            first = (ast.get_docstring(node) or "").partition("\n")[0]
            if _FRAGMENT.match(first) or len(first.split()) < _FEWEST_WORDS:
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {first!r}"


@pytest.mark.parametrize("folder", sorted(path.name for path in (ROOT / "tests").iterdir() if path.is_dir()))
def test_docstrings_of_tests_stand_alone(folder: str) -> None:
    """The docstring of a test is a sentence that could stand in the manual, without the name of the test."""
    found = [place for path in sorted((ROOT / "tests" / folder).rglob("test_*.py")) for place in find_fragments(path)]
    assert not found, "\n".join(found)
