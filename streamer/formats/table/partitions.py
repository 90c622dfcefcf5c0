"""Finds the columns that are in the paths of files only: `year=2024/lang=en/part-0.parquet`, as Hive writes them.

Names, types and values are those that pyarrow infers: whole numbers of 32 bits where all values are, else texts; of two
folders of one name the upper one counts.

Source: https://arrow.apache.org/docs/python/generated/pyarrow.dataset.HivePartitioning.html
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import unquote

from streamer.formats.base import FieldSpec

# Hive and Spark write this for null.
_NULL = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile(r"-?[0-9]+")
# pyarrow reads these as the 32 bits of a number, too: 0xffffffff is -1.
_HEXADECIMAL = re.compile(r"0[xX][0-9a-fA-F]{1,8}")
_INT32 = range(-(2**31), 2**31)
NUMBER = "<i4"
TEXT = "txt"


def partition_key(url: str, base: str) -> str:
    """Returns the part of an object's url whose folders may be partitions.

    Args:
        url: Url of an object.
        base: Folder of the table; "" if it is not known, so that the whole path counts.
    """
    return url.removeprefix(base) if base else url.partition("://")[2] or url


def read_partitions(key: str) -> list[tuple[str, str | None]]:
    """Returns the names and values of the partitions in the folders of a path; None stands for null.

    Raises:
        ValueError: A name or a value is not UTF-8 where its escapes are decoded.
    """
    found = list[tuple[str, str | None]]()
    for part in key.split("/")[:-1]:
        name, equals, value = part.partition("=")
        if equals and name:
            try:
                name = unquote(name, errors="strict")
                value = unquote(value, errors="strict")
            except UnicodeDecodeError as error:
                raise ValueError(f"{part!r} in its path is not UTF-8 where its escapes are decoded") from error
            found.append((name, None if value == _NULL else value))
    return found


def find_path_problems(keys: Mapping[str, str]) -> dict[str, str]:
    """Returns why the partitions in a path cannot be read, by the url of the file.

    Args:
        keys: The paths, as `partition_key` gives them, by the urls of the files.
    """
    found = {}
    for url, key in keys.items():
        try:
            read_partitions(key)
        except ValueError as error:
            found[url] = f"has a path that cannot be read: {error}"
    return found


def partition_fields(keys: Iterable[str]) -> list[FieldSpec]:
    """Returns the fields that the paths of files have, in the order of the folders.

    Raises:
        ValueError: A path has a part that is not UTF-8.
    """
    are_numbers: dict[str, bool] = {}
    have_values = set[str]()
    for key in keys:
        if "=" not in key:
            continue
        for name, text in read_partitions(key):
            are_numbers.setdefault(name, True)
            if text is not None:
                have_values.add(name)
                are_numbers[name] = are_numbers[name] and _read_number(text) is not None
    return [
        FieldSpec(name, NUMBER if is_number and name in have_values else TEXT)
        for name, is_number in are_numbers.items()
    ]


def partition_values(fields: Sequence[FieldSpec], key: str) -> list[int | str | None]:
    """Returns the values of these fields for a file, with None where its path does not have one.

    Raises:
        ValueError: A number is wanted and the path has a text, or a value is not UTF-8.
    """
    # The upper one of two folders of one name counts.
    texts = dict(reversed(read_partitions(key))) if fields else {}
    found = list[int | str | None]()
    for field in fields:
        text = texts.get(field.name)
        if text is not None and field.kind == NUMBER and _read_number(text) is None:
            raise ValueError(f"{field.name}={text!r} in its path is not a number of 32 bits, as it is in other paths")
        found.append(_read_number(text) if text is not None and field.kind == NUMBER else text)
    return found


def _read_number(text: str) -> int | None:
    """Returns a whole number of 32 bits; None if the text is none."""
    if _HEXADECIMAL.fullmatch(text):
        return (int(text, 16) ^ 1 << 31) - (1 << 31)
    if _INTEGER.fullmatch(text) and (number := int(text)) in _INT32:
        return number
    return None
