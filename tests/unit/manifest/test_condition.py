"""Conditions of `where=`: which texts select which rows, and that all other texts are refused."""

from __future__ import annotations

import numpy as np
import pytest

from streamer.errors import ConfigError
from streamer.manifest.column_files import column_of
from streamer.manifest.condition import Condition

COLUMNS = {
    "width": column_of("width", [100, 300, None, 500]),
    "height": column_of("height", [200, 150, 10, 0]),
    "lang": column_of("lang", ["en", "de", "en", None]),
    "score": column_of("score", [0.1, float("nan"), 0.9, None]),
    "safe": column_of("safe", [True, False, None, True]),
}


def chosen(text: str) -> list[int]:
    test = Condition(text).test(lambda names: [COLUMNS[name] for name in names], 4)
    return np.flatnonzero(test(np.arange(4))).tolist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("width >= 256 and lang == 'en'", []),
        ("width >= 256 or lang == 'en'", [0, 1, 2, 3]),
        ("width >= 256 or height < 50", [1, 2, 3]),
        ("not width >= 256", [0]),
        ("100 < width <= 300", [1]),
        ("width is None", [2]),
        ("lang is not None and safe", [0]),
        ("not safe", [1]),
        ("safe == True", [0, 3]),
        ("lang in ('en', 'fr')", [0, 2]),
        ("lang not in ('en', 'fr')", [1]),
        ("width / height > 1", [1, 3]),
        ("width * height + 1 == 20001", [0]),
        ("-width < -200", [1, 3]),
        ("score != 0.1", [1, 2]),
        ("not score < 0.5", [1, 2]),
        ("lang >= 'df'", [0, 2]),
    ],
)
def test_conditions(text, expected):
    """A condition selects the rows where it is true; a missing value is neither true nor false, NaN is a value."""
    assert chosen(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "give a condition"),
        (None, "give a condition"),
        (17, "give a condition"),
        ("width >=", "at character"),
        ("width = 3", "written with =="),
        ("width > 3; lang == 'en'", "at character"),
        ("a" * 10_001, "more than 10000"),
        ("width > 3\x00", "cannot be parsed|null"),
        ("(" * 300 + "width" + ")" * 300, "at character|cannot be parsed|deep"),
        ("not " * 200 + "safe", "100 levels deep"),
        (".".join(["a"] * 4000) + " > 1", "names a column|'a.a"),
        ("1 == 1", "names no column"),
        ("width", "no truth value"),
        ("width == 'en'", "one is a text and one a number"),
        ("lang < 3", "one is a text and one a number"),
        ("lang + 1 > 2", "is not a number"),
        ("width == None", "write `is None`"),
        ("width in 3", "after `in`"),
        ("width in ()", "after `in`"),
        ("width is 3", "`is` is for a column and None"),
        ("width == 10 ** 9", "Pow is not part"),
        ("width == 99999999999999999999", "64 bits"),
        ("width == 1j", "not a column"),
        ("width == b'en'", "not a column"),
        ("__import__('os').system('true')", "Call is not part"),
        ("().__class__.__bases__[0].__subclasses__()", "Call is not part"),
        ("width.__class__ == 3", "width.__class__"),
        ("().__class__ == 3", "Tuple is not a column"),
        ("[x for x in (1, 2)] == width", "ListComp is not part"),
        ("(lambda: 1)() == width", "is not part"),
        ("f'{width}' == 'a'", "JoinedStr is not part"),
        ("(width := 3) == 3", "NamedExpr is not part"),
        ("width if safe else height", "IfExp is not part"),
        ("lang[0] == 'e'", "Subscript is not part"),
    ],
)
def test_other_texts_are_refused(text, message):
    """A text outside the language of conditions raises ConfigError with a reason and is not executed."""

    def column_of_name(name: str):
        if name not in COLUMNS:
            raise ConfigError(f"where= names a column {name!r:.50}", field="where")
        return COLUMNS[name]

    with pytest.raises(ConfigError, match=message):
        Condition(text).test(lambda names: [column_of_name(name) for name in names], 4)(np.arange(4))


@pytest.mark.parametrize("values", [["a", 1], [True, 1], [b"x"], [{"a": 1}], [2**63, -1], [2**64]])
def test_columns_have_one_type(values):
    """A column of a mixture, of other types or of numbers beyond 64 bits raises ConfigError."""
    with pytest.raises(ConfigError, match="column 'c'"):
        column_of("c", values)


def test_types_of_columns():
    """Whole numbers and floats are a column of floats, and a column of missing values is one of texts."""
    assert column_of("c", [1, 2.5, None]).kind == "float"
    assert column_of("c", [None]).kind == "text"


def test_a_whole_number_that_no_float_holds_is_a_config_error():
    """A column of floats with a whole number above their range is refused with its name."""
    with pytest.raises(ConfigError, match="column 'width' has a whole number that is too large"):
        column_of("width", [1.0, 10**400])
