"""A public function names the errors of the functions that it calls, unless it catches them.

A call is followed if the function is found by its name: one of the module or of its imports, a class, or a method of
the own class. Errors are those of streamer and OSError, as the docstring of the called function says.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from streamer import errors

ROOT = Path(__file__).parents[2]
ERRORS = {"Exception": Exception} | {
    name: kind
    for name, kind in (*vars(builtins).items(), *vars(errors).items())
    if isinstance(kind, type) and issubclass(kind, OSError | errors.StreamerError)
}
# What these contexts make another error of.
CONTEXTS = {"workplace": {"OSError"}, "read_examined": {"RecodeError"}, "catch_decode_errors": {"Exception"}}
# Errors that a caller cannot meet, each with the reason.
IMPOSSIBLE = {
    "ConfigError of streamer.base.concurrency.map_concurrently": "the number at once is a constant above 0",
    "ConfigError of streamer.formats.folder.Folder": "the extensions are those of files that were found",
    "ConfigError of streamer.order.rank_split.RankSplit": "the division was checked when the stream was opened",
    "ClientConnection.send: ConfigError of streamer.wire.frames.encode": "events are sent with escapes",
    "describe_lane_spread: ConfigError of streamer.order.quality.lane_spread": "it asks first if they can",
}

_SECTION = re.compile(r"^Raises:\n((?: {4}.*\n?|\n)*)", re.MULTILINE)
_OTHER_SECTION = re.compile(r"^(?:Args|Attributes|Returns|Yields):\n((?: {4}.*\n?|\n)*)", re.MULTILINE)
_CLAUSE = re.compile(r"[Rr]aises ((?:an? )?[\w, ]+?)(?: for| if| when| where| unless|\.|;|:|$)", re.MULTILINE)
# A docstring that leaves errors to that of another function.
_ELSEWHERE = re.compile(r"(?:[Ss]ee|\bas|\bas of|errors? of|promises|[Dd]oes what|raises\)? what) (?:the )?`")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def find_names(text: str) -> set[str]:
    return {word for word in re.findall(r"\w+", text) if word in ERRORS}


def find_claims(text: str) -> set[str]:
    """Returns the errors that a docstring says are raised; those that an argument raises when it is called are left."""
    clauses = _CLAUSE.findall(_OTHER_SECTION.sub("", text))
    if section := _SECTION.search(text):
        clauses += [line.partition(":")[0] for line in section[1].splitlines() if re.match(r" {4}\S", line)]
    return find_names(" ".join(clauses)) - {"Exception"}


def is_one_of(name: str, others: Set[str]) -> bool:
    return any(issubclass(ERRORS[name], ERRORS[other]) for other in others)


def find_caught(node: ast.Try | ast.With | ast.AsyncWith) -> set[str]:
    """Returns the errors that do not leave the body of a statement."""
    if isinstance(node, ast.Try):
        types = [ast.unparse(handler.type) if handler.type else "Exception" for handler in node.handlers]
        # A handler of a variable, such as a tuple of errors, may catch anything.
        return {name for each in types for name in find_names(each) or {"Exception"}}
    caught: set[str] = set()
    for context in [ast.unparse(item.context_expr) for item in node.items]:
        called = context.partition("(")[0].rpartition(".")[2]
        caught |= find_names(context) if called == "suppress" else CONTEXTS.get(called, set())
    return caught


def find_calls(node: ast.AST, caught: frozenset[str] = frozenset()) -> Iterator[tuple[ast.Call, frozenset[str]]]:
    """Yields the calls inside a node, each with the errors that are caught around it; not those of inner functions."""
    if isinstance(node, ast.Call):
        yield node, caught
    is_block = isinstance(node, ast.Try | ast.With | ast.AsyncWith)
    inside = caught | find_caught(node) if is_block else caught
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Function | ast.Lambda | ast.ClassDef):
            yield from find_calls(child, inside if is_block and child in node.body else caught)


@dataclass
class Module:
    """The functions and imports of a module; the name of a class stands for its constructor."""

    functions: dict[str, tuple[Function, str]] = field(default_factory=dict)
    docstrings: dict[str, str] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)

    def add(self, body: list[ast.stmt], owner: str = "") -> None:
        """Adds what the statements of a module, or of a class, define."""
        for node in body:
            if isinstance(node, Function):
                name = f"{owner}.{node.name}" if owner else node.name
                self.functions[name] = node, owner
                self.docstrings[name] = ast.get_docstring(node) or ""
            elif isinstance(node, ast.ClassDef) and not owner:
                self.add(node.body, node.name)
                constructor = self.docstrings.get(f"{node.name}.__init__", "")
                self.docstrings[node.name] = f"{ast.get_docstring(node) or ''}\n\n{constructor}"


@cache
def read_package() -> dict[str, Module]:
    """Returns all modules of the package by their names; they are read once."""
    modules: dict[str, Module] = {}
    for path in sorted((ROOT / "streamer").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        module = modules[name] = Module()
        tree = ast.parse(path.read_text())
        module.add(tree.body)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("streamer"):
                module.imports |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
    return modules


class Search:
    """Finds errors of called functions that callers do not name."""

    def __init__(self, modules: dict[str, Module]) -> None:
        self.modules = modules

    def find_called(self, module: str, call: ast.Call, owner: str) -> tuple[str, str] | None:
        """Returns the name and the docstring of a called function, or None for one that is not followed."""
        name = ast.unparse(call.func)
        if owner and name.startswith(("self.", "cls.")):
            name = f"{owner}.{name.partition('.')[2]}"
        for _ in range(3):  # a name may come from a package that imports it, too
            known = self.modules[module]
            if name in known.docstrings:
                return f"{module}.{name}", known.docstrings[name]
            head, dot, rest = name.partition(".")
            source, imported = known.imports.get(head, ("", ""))
            if f"{source}.{imported}" in self.modules:
                module, name = f"{source}.{imported}", rest
            elif source in self.modules:
                module, name = source, f"{imported}{dot}{rest}"
            else:
                return None
        return None

    def find_errors(self, module: str, function: Function, owner: str) -> Iterator[tuple[str, str]]:
        """Yields the errors of the functions that a function calls, each with the name of the called function."""
        for statement in function.body:
            for call, caught in find_calls(statement):
                if (called := self.find_called(module, call, owner)) is not None:
                    name, text = called
                    yield from ((error, name) for error in find_claims(text) if not is_one_of(error, caught))

    def find_unnamed(self, module: str) -> Iterator[str]:
        """Yields the errors that public functions of a module do not name, although functions that they call do."""
        known = self.modules[module]
        for name, (function, owner) in known.functions.items():
            if name.startswith("_") or (function.name.startswith("_") and function.name != "__init__"):
                continue
            text = known.docstrings[owner] if function.name == "__init__" else known.docstrings[name]
            if _ELSEWHERE.search(text):
                continue
            for error, source in sorted({*self.find_errors(module, function, owner)}):
                line = f"{name}: {error} of {source}"
                if not is_one_of(error, find_names(text)) and not line.endswith(tuple(IMPOSSIBLE)):
                    yield f"{module}:{function.lineno} {line}"


@pytest.mark.parametrize("room", sorted(path.parent.name for path in (ROOT / "streamer").glob("*/__init__.py")))
def test_functions_name_the_errors_of_those_they_call(room: str) -> None:
    """The docstring of each public function names the errors of the functions it calls, or sends to another one."""
    modules = read_package()
    of_room = [name for name in modules if name.split(".")[1:2] == [room]]
    found = [line for name in of_room for line in Search(modules).find_unnamed(name)]
    assert of_room
    assert not found, "\n".join(found)
