"""Reads partitions: columns whose values are in the paths of files only, such as `year=2024/lang=en/part-0.parquet`.

Parquet and Arrow use it for files in folders as Hive writes them. Names, types and values are those that pyarrow
infers: a column has whole numbers of 32 bits if all its values are such numbers, else texts. If two folders of a path
have one name, the upper one counts.

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
        base: Url of the table's folder; "" if it is not known: then the whole path counts.
    """
    return url.removeprefix(base) if base else url.partition("://")[2] or url


def read_partitions(key: str) -> list[tuple[str, str | None]]:
    """Returns the names and values of the partitions in the folders of a path, the uppermost first; None is a null.

    Raises:
        ValueError: A name or a value is not UTF-8 after its escapes (%20) are decoded.
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
    """Returns, by url of a file, why the partitions in its path cannot be read; files without a problem are left out.

    Args:
        keys: Paths of the files by url, as `partition_key` gives them.
    """
    found = {}
    for url, key in keys.items():
        try:
            read_partitions(key)
        except ValueError as error:
            found[url] = f"has a path that cannot be read: {error}"
    return found


def partition_fields(keys: Iterable[str]) -> list[FieldSpec]:
    """Returns a field for each partition in the paths of files, in the order of the folders, numbers or texts.

    Args:
        keys: Paths of the files, as `partition_key` gives them.

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
    """Returns the values of partitions for a file; None for one that its path does not have, or that is null.

    Args:
        fields: The fields, as `partition_fields` gives them.
        key: Path of the file, as `partition_key` gives it.

    Raises:
        ValueError: A field has numbers and the path has a text for it, or a value is not UTF-8.
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
    """Returns the whole number of 32 bits that a text is; None for another text."""
    if _HEXADECIMAL.fullmatch(text):
        return (int(text, 16) ^ 1 << 31) - (1 << 31)
    if _INTEGER.fullmatch(text) and (number := int(text)) in _INT32:
        return number
    return None
