"""Parses and evaluates conditions on columns, such as "width >= 256 and lang == 'en'", and holds a column's values.

`manifest/selection.py` selects samples by them (`where=` of a user), `loader/members/` finds the columns that they
name, and `manifest/column_files.py` keeps columns. A condition is parsed as a Python expression, of which only these
parts are allowed; it is never executed.

    and, or, not, ( )                      of conditions
    == != < <= > >=, also 0 < width < 9    of columns, numbers and texts
    in ('en', 'de'), not in (1, 2)         of a column and values
    is None, is not None                   whether a column has a value
    + - * /                                of numbers, as 64-bit floats
    flag                                   a column of truth values by itself
    json.width                             a part of a field

A comparison with a missing value is unknown, as in SQL: neither it nor its `not` selects the sample. NaN is a value,
for which all comparisons but `!=` are false. Texts are compared by their code points.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.errors import ConfigError
from streamer.manifest.columns import BinaryColumn

Int64Array = NDArray[np.int64]
Flags = NDArray[np.bool_]
# The types that values of a column have.
Kind = Literal["bool", "int", "uint", "float", "text"]

# Most characters of a condition.
_LONGEST = 10_000
# Most levels of a condition; Python's own limit of recursion is at a thousand.
_DEEPEST = 100
_Compared = Callable[[Any, Any], Any]
_COMPARED: dict[type[ast.cmpop], _Compared] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_SWAPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE}
_CALCULATED: dict[type[ast.operator], np.ufunc] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.true_divide,
}


class ColumnValues(msgspec.Struct, frozen=True, eq=False):
    """A column, with at most one value for each sample.

    Attributes:
        kind: type of the values.
        valid: bool, shape (n,): whether each row has a value.
        values: int64 (0 and 1 for "bool"), uint64 or float64, shape (n,); for texts a column of their UTF-8.
    """

    kind: Kind
    valid: Flags
    values: NDArray[np.generic] | BinaryColumn

    @property
    def samples(self) -> int:
        """Number of samples."""
        return len(self.valid)

    def join_to(self, rows: Int64Array) -> JoinedValues:
        """Returns this column for other samples, each of which has the value of the row that it is joined to.

        Args:
            rows: int64, shape (samples,): row of this column for each of the other samples, or -1 if it has none.
        """
        return JoinedValues(self.kind, self.valid, self.values, rows)

    def places(self, ordinals: Int64Array) -> tuple[Int64Array, Flags]:
        """Returns the row in `values` of each of these samples, and whether it has a value; shape (k,) each."""
        return ordinals, self.valid[ordinals]

    def value(self, row: int) -> str | int | float | bool | None:
        """Returns the value in a row of `values` as a Python object, or None if the row has none."""
        if not self.valid[row]:
            return None
        if isinstance(self.values, BinaryColumn):
            return self.values[row].decode("utf-8", "surrogatepass")
        found: int | float = self.values[row].item()
        return bool(found) if self.kind == "bool" else found


class JoinedValues(ColumnValues, frozen=True, eq=False):
    """A column of another dataset, to whose rows the samples of this one are joined.

    Attributes:
        rows: int64, shape (samples,): row in `values` of each sample of this dataset, or -1 if it has none.
    """

    rows: Int64Array

    @property
    def samples(self) -> int:
        """Number of samples."""
        return len(self.rows)

    def places(self, ordinals: Int64Array) -> tuple[Int64Array, Flags]:
        """See `ColumnValues.places`."""
        rows = self.rows[ordinals]
        places = np.maximum(rows, 0)
        return places, (rows >= 0) & self.valid[places]


# Returns the columns of these names, in their order.
ColumnsOf = Callable[[Sequence[str]], Sequence[ColumnValues]]


class _Truth(msgspec.Struct, frozen=True, eq=False):
    """A condition for some samples: where it is true, and where it is known whether it is; bool, shape (k,) each."""

    true: Flags
    known: Flags


class _Numbers(msgspec.Struct, frozen=True, eq=False):
    """Numbers of some samples, or one number for all; and which samples have one, where True means all of them."""

    values: NDArray[Any] | int | float
    valid: Flags | bool = True


class _Texts(msgspec.Struct, frozen=True, eq=False):
    """Texts of some samples: their rows in a column, and which samples have one."""

    column: BinaryColumn
    rows: Int64Array
    valid: Flags

    def compare(self, compared: _Compared, text: str) -> Flags:
        """Compares each text with this one; returns bool, shape (k,)."""
        wanted = text.encode("utf-8", "surrogatepass")
        if compared in {operator.eq, operator.ne}:
            offsets = self.column.offsets
            content = self.column.content
            first = offsets[self.rows].astype(np.int64)
            equal: Flags = offsets[self.rows + 1] - first == len(wanted)
            some = np.flatnonzero(equal)
            # One byte of all rows that are still equal at a time: memory grows with the rows, not with the length.
            for at, byte in enumerate(wanted):
                some = some[content[first[some] + at] == byte]
            equal[:] = False
            equal[some] = True
            return equal if compared is operator.eq else ~equal
        column = self.column
        return np.fromiter((compared(column[row], wanted) for row in self.rows.tolist()), np.bool_, len(self.rows))


Operand = _Numbers | _Texts | str


class Condition:
    """A parsed condition.

    Args:
        text: the condition as the user writes it.

    Attributes:
        text: the same.
        columns: names of the columns that it uses, each once, sorted.

    Raises:
        ConfigError: the text is not a condition, is too long or too deep, or names no column.
    """

    def __init__(self, text: object) -> None:
        if not isinstance(text, str) or not text.strip():
            raise ConfigError(
                f"where={text!r:.100}: give a condition as \"width >= 256 and lang == 'en'\"", field="where"
            )
        if len(text) > _LONGEST:
            raise ConfigError(f"where= has {len(text)} characters, more than {_LONGEST}", field="where")
        self.text = text
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
        except SyntaxError as error:
            hint = "; conditions are written with ==, and, or, not, in, is None"
            raise self.error(f"{error.msg} at character {error.offset}{hint}") from error
        except (ValueError, RecursionError, MemoryError) as error:
            raise self.error(f"cannot be parsed: {type(error).__name__} {error}") from error
        names: dict[str, None] = {}
        open_nodes: list[tuple[ast.AST, int]] = [(self._tree, 0)]
        while open_nodes:
            node, depth = open_nodes.pop()
            if depth > _DEEPEST:
                raise self.error(f"more than {_DEEPEST} levels deep")
            if isinstance(node, ast.Name | ast.Attribute):
                names[self.name(node)] = None
                continue
            if not isinstance(node, _ALLOWED):
                what = type(node).__name__
                raise self.error(f"{what} is not part of conditions (and, or, not, comparisons, in, is None, + - * /)")
            open_nodes += [(child, depth + 1) for child in ast.iter_child_nodes(node)]
        if not names:
            raise self.error("it names no column")
        self.columns = sorted(names)

    def __repr__(self) -> str:
        return f"Condition({self.text!r})"

    def test(self, columns_of: ColumnsOf, samples: int) -> Callable[[Int64Array], Flags]:
        """Returns a function that is given ordinals and returns for which of them the condition is true.

        Args:
            columns_of: returns the columns that the condition names; its errors are passed on.
            samples: number of samples of the dataset.

        Raises:
            ConfigError: the condition is not true or false, or it compares or calculates with what it cannot.
        """
        columns = dict(zip(self.columns, columns_of(self.columns), strict=True))
        for name, column in columns.items():
            assert column.samples == samples, f"column {name} is of {column.samples} samples"
        # Wrong types are wrong for all samples: this finds them without any.
        _Evaluation(self, columns, np.empty(0, np.int64)).truth(self._tree)
        return lambda ordinals: _Evaluation(self, columns, ordinals).truth(self._tree).true

    def name(self, node: ast.expr) -> str:
        """Returns the name of a column, with those of its parts: `json.width`; raises ConfigError for another node."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.insert(0, node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            raise self.error(f"{type(node).__name__} is not a column: only names, and parts of them as json.width")
        return ".".join([node.id, *parts])

    def error(self, what: str) -> ConfigError:
        """Returns the error that names the condition and says what is wrong."""
        return ConfigError(f"where={self.text!r:.200}: {what}", field="where")


_ALLOWED = (
    *(ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.Compare, ast.BinOp, ast.Constant),
    *(ast.Load, ast.Tuple, ast.List, ast.Set, ast.In, ast.NotIn, ast.Is, ast.IsNot, *_COMPARED, *_CALCULATED),
)


class _Evaluation:
    """Evaluates nodes of a condition for the samples with these ordinals; raises ConfigError for wrong types."""

    def __init__(self, condition: Condition, columns: dict[str, ColumnValues], ordinals: Int64Array) -> None:
        self._condition = condition
        self._columns = columns
        self._ordinals = ordinals

    def truth(self, node: ast.expr) -> _Truth:
        """Returns where a node is true; it is a condition, or a column of truth values."""
        match node:
            case ast.BoolOp(op=op, values=values):
                return self._combine([self.truth(value) for value in values], every=isinstance(op, ast.And))
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                found = self.truth(inner)
                return _Truth(found.known & ~found.true, found.known)
            case ast.Compare(left=left, ops=ops, comparators=rights):
                sides = [left, *rights]
                pairs = zip(pairwise(sides), ops, strict=True)
                return self._combine([self._compare(*pair, op) for pair, op in pairs], every=True)
            case ast.Name() | ast.Attribute():
                column = self._columns[self._condition.name(node)]
                if column.kind != "bool":
                    raise self._condition.error(
                        f"{ast.unparse(node)} is a {column.kind}, no truth value: compare it with something"
                    )
                flags, valid = self._take_numbers(column)
                return _Truth(valid & (flags != 0), valid)
            case _:
                raise self._condition.error(f"{ast.unparse(node)!r:.100} is not true or false")

    def _combine(self, parts: Sequence[_Truth], *, every: bool) -> _Truth:
        """Joins conditions by `and` (with `every`) or `or`: the result is known where one of them decides it."""
        combine = np.logical_and if every else np.logical_or
        true = combine.reduce([part.true for part in parts])
        decided = [part.known & (~part.true if every else part.true) for part in parts]
        known = np.logical_and.reduce([part.known for part in parts]) | np.logical_or.reduce(decided)
        return _Truth(true, known)

    def _compare(self, left: ast.expr, right: ast.expr, op: ast.cmpop) -> _Truth:
        """Returns where one comparison is true: by `is`, by `in`, or of two operands."""
        if isinstance(op, ast.Is | ast.IsNot):
            present = isinstance(op, ast.IsNot)
            none = isinstance(right, ast.Constant) and right.value is None
            if not none or not isinstance(left, ast.Name | ast.Attribute):
                raise self._condition.error("`is` is for a column and None; compare values with ==")
            _, valid = self._columns[self._condition.name(left)].places(self._ordinals)
            return _Truth(valid if present else ~valid, np.ones(len(valid), np.bool_))
        if isinstance(op, ast.In | ast.NotIn):
            if not isinstance(right, ast.Tuple | ast.List | ast.Set) or not right.elts:
                raise self._condition.error(f"{ast.unparse(right)!r:.100} after `in`: give values as ('en', 'de')")
            found = self._combine([self._compare(left, value, ast.Eq()) for value in right.elts], every=False)
            return found if isinstance(op, ast.In) else _Truth(found.known & ~found.true, found.known)
        first = self._operand(left)
        second = self._operand(right)
        if isinstance(first, str) or (isinstance(first, _Numbers) and not isinstance(first.values, np.ndarray)):
            first, second, op = second, first, _SWAPPED.get(type(op), type(op))()
        compared = _COMPARED[type(op)]
        both = f"{ast.unparse(left)} and {ast.unparse(right)}"
        if isinstance(first, _Texts) and isinstance(second, str):
            return _Truth(first.valid & first.compare(compared, second), first.valid)
        if isinstance(first, _Texts) and isinstance(second, _Texts):
            column = first.column
            other = second.column
            pairs = zip(first.rows.tolist(), second.rows.tolist(), strict=True)
            valid = first.valid & second.valid
            flags = (compared(column[row], other[same]) for row, same in pairs)
            return _Truth(valid & np.fromiter(flags, np.bool_, len(valid)), valid)
        if isinstance(first, _Numbers) and isinstance(second, _Numbers):
            valid = np.ones(len(self._ordinals), np.bool_) & first.valid & second.valid
            return _Truth(valid & np.asarray(compared(first.values, second.values)), valid)
        raise self._condition.error(f"{both:.200} cannot be compared: one is a text and one a number")

    def _operand(self, node: ast.expr) -> Operand:
        """Returns the values of a column, a calculation or a literal."""
        match node:
            case ast.Constant(value=str(value)):
                return value
            case ast.Constant(value=int() | float() as value):
                if isinstance(value, float) and not value.is_integer():
                    return _Numbers(value)
                # A whole number stays one: 64-bit floats cannot tell those above 2^53 apart.
                if not -(2**63) <= int(value) < 2**64:
                    raise self._condition.error(f"{value:.3g} does not fit into 64 bits")
                return _Numbers(int(value))
            case ast.Constant(value=None):
                raise self._condition.error("a comparison with None is never known: write `is None` or `is not None`")
            case ast.Name() | ast.Attribute():
                column = self._columns[self._condition.name(node)]
                if isinstance(column.values, BinaryColumn):
                    return _Texts(column.values, *column.places(self._ordinals))
                return _Numbers(*self._take_numbers(column))
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                found = self._number(inner)
                values = found.values
                if isinstance(values, np.ndarray) and values.dtype == np.uint64:
                    values = values.astype(np.float64)
                return _Numbers(-values, found.valid)
            case ast.BinOp(left=left, op=op, right=right):
                first = self._number(left)
                second = self._number(right)
                with np.errstate(all="ignore"):
                    values = _CALCULATED[type(op)](np.float64(first.values), np.float64(second.values))
                return _Numbers(values, first.valid & second.valid)
            case _:
                raise self._condition.error(f"{ast.unparse(node)!r:.100} is not a column, a number or a text")

    def _number(self, node: ast.expr) -> _Numbers:
        found = self._operand(node)
        if not isinstance(found, _Numbers):
            raise self._condition.error(f"{ast.unparse(node)!r:.100} is not a number")
        return found

    def _take_numbers(self, column: ColumnValues) -> tuple[NDArray[Any], Flags]:
        """Returns the numbers of the samples, and which of them have one."""
        assert isinstance(column.values, np.ndarray)
        places, valid = column.places(self._ordinals)
        return column.values[places], valid
