"""Finds the columns that are in the paths of files only: `year=2024/lang=en/part-0.parquet`, as Hive writes them.

Their types are those that pyarrow infers: whole numbers of 32 bits where all values are, else texts.

Source: https://arrow.apache.org/docs/python/generated/pyarrow.dataset.HivePartitioning.html
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import unquote

from streamer.formats.base import FieldSpec

# What Hive and Spark write for null.
_NULL = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile(r"-?[0-9]+")
_INT32 = range(-(2**31), 2**31)
NUMBER = "<i4"
TEXT = "txt"


def partition_texts(key: str) -> dict[str, str | None]:
    """Returns the partitions in the folders of a path, by their names; None where a value is null."""
    found: dict[str, str | None] = {}
    for part in key.partition("://")[2].split("/")[:-1] if "://" in key else key.split("/")[:-1]:
        name, equals, value = part.partition("=")
        if equals and name:
            found[unquote(name)] = None if value == _NULL else unquote(value)
    return found


def partition_fields(keys: Iterable[str]) -> list[FieldSpec]:
    """Returns the fields that the paths of files have, in the order of the folders."""
    are_numbers: dict[str, bool] = {}
    have_values = set[str]()
    for key in keys:
        if "=" not in key:
            continue
        for name, text in partition_texts(key).items():
            are_numbers.setdefault(name, True)
            if text is not None:
                have_values.add(name)
                are_numbers[name] = are_numbers[name] and _is_number(text)
    return [
        FieldSpec(name, NUMBER if is_number and name in have_values else TEXT)
        for name, is_number in are_numbers.items()
    ]


def partition_values(fields: Sequence[FieldSpec], key: str) -> list[int | str | None]:
    """Returns the values of these fields for a file; None where its path does not have one.

    Raises:
        ValueError: a number is wanted, and the path has a text.
    """
    texts: Mapping[str, str | None] = partition_texts(key) if fields else {}
    found = list[int | str | None]()
    for field in fields:
        text = texts.get(field.name)
        if text is not None and field.kind == NUMBER and not _is_number(text):
            raise ValueError(f"{field.name}={text!r} in its path is not a number of 32 bits, as it is in other paths")
        found.append(int(text) if text is not None and field.kind == NUMBER else text)
    return found


def _is_number(text: str) -> bool:
    return _INTEGER.fullmatch(text) is not None and int(text) in _INT32
