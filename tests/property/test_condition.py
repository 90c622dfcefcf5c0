"""`where`: a condition selects exactly the samples that brute force in Python selects, over random tables."""

from __future__ import annotations

import math
import operator

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamer.manifest.column_files import column_of
from streamer.manifest.condition import Condition

COMPARED = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
TEXTS = st.sampled_from(["", "a", "b", "ab", "ä", "日本", "it's", 'x"y', "a\x00b"])
INTS = st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1))
FLOATS = st.one_of(st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 0.5]), st.floats(-3, 3))
VALUES = {"number": INTS, "ratio": FLOATS, "lang": TEXTS, "meta.lang": TEXTS, "flag": st.booleans()}
LITERALS = {
    "number": st.one_of(INTS, st.sampled_from([0.5, 2.0, -1.5])),
    "ratio": st.one_of(st.integers(-3, 3), st.floats(-3, 3)),
    "lang": TEXTS,
    "meta.lang": TEXTS,
}
ROWS = st.lists(st.fixed_dictionaries({name: st.none() | values for name, values in VALUES.items()}), max_size=12)


@st.composite
def comparisons(draw: st.DrawFn) -> tuple:
    name = draw(st.sampled_from(list(LITERALS)))
    kind = draw(st.sampled_from(["compare", "swapped", "in", "not in", "is None", "is not None", "flag", "columns"]))
    literal = LITERALS[name]
    match kind:
        case "flag":
            return ("flag",)
        case "columns":
            return "columns", draw(st.sampled_from(list(COMPARED)))
        case "in" | "not in":
            return kind, name, draw(st.lists(literal, min_size=1, max_size=3))
        case "is None" | "is not None":
            return kind, name
    return kind, name, draw(st.sampled_from(list(COMPARED))), draw(literal)


TREES = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner),
        st.tuples(st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=3)),
    ),
    max_leaves=6,
)


def text_of(tree: tuple) -> str:
    match tree:
        case ("flag",):
            return "flag"
        case ("columns", op):
            return f"lang {op} meta.lang"
        case ("not", inner):
            return f"not ({text_of(inner)})"
        case ("and" | "or" as word, inner):
            return f" {word} ".join(f"({text_of(one)})" for one in inner)
        case ("compare", name, op, value):
            return f"{name} {op} {value!r}"
        case ("swapped", name, op, value):
            return f"{value!r} {op} {name}"
        case ("in" | "not in" as word, name, values):
            return f"{name} {word} [{', '.join(map(repr, values))}]"
    return f"{tree[1]} {tree[0]}"


def truth(tree: tuple, row: dict[str, object]) -> bool | None:
    """Evaluates a condition by Python, with None for what is not known."""
    match tree:
        case ("flag",):
            return row["flag"]
        case ("not", inner):
            found = truth(inner, row)
            return None if found is None else not found
        case ("and", inner):
            found = [truth(one, row) for one in inner]
            return False if False in found else None if None in found else True
        case ("or", inner):
            found = [truth(one, row) for one in inner]
            return True if True in found else None if None in found else False
        case ("is None", name):
            return row[name] is None
        case ("is not None", name):
            return row[name] is not None
        case ("columns", op):
            sides = row["lang"], row["meta.lang"]
            return None if None in sides else COMPARED[op](*sides)
    if row[tree[1]] is None:
        return None
    match tree:
        case ("compare", name, op, value):
            return COMPARED[op](row[name], value)
        case ("swapped", name, op, value):
            return COMPARED[op](value, row[name])
        case ("in", name, values):
            return any(row[name] == value for value in values)
    return all(row[tree[1]] != value for value in tree[2])


@given(rows=ROWS, tree=TREES, data=st.data())
def test_where_is_a_filter_by_brute_force(rows, tree, data):
    """A condition selects the samples for which Python's own evaluation of it is true, in any order of the samples.
    Nulls, NaN, texts beyond ASCII and numbers beyond 2^53 are included.
    """
    columns = {name: column_of(name, [row[name] for row in rows]) for name in VALUES}
    # A column without any value is one of texts: it cannot be compared with numbers.
    for name, value in {"number": 0, "ratio": 0.0, "flag": False}.items():
        if all(row[name] is None for row in rows):
            columns[name] = column_of(name, [value, *(None for _ in rows)])
            valid, values = columns[name].valid[1:], columns[name].values[1:]
            columns[name] = type(columns[name])(columns[name].kind, valid, values)
    condition = Condition(text_of(tree))
    ordinals = np.array(data.draw(st.permutations(range(len(rows)))), np.int64)
    found = condition.test(lambda names: [columns[name] for name in names], len(rows))(ordinals)
    assert found.tolist() == [truth(tree, rows[at]) is True for at in ordinals.tolist()], condition
