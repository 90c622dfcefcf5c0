"""Parses tf.train.Example messages without the library protobuf.

`tables/tfrecord.py` opens samples with it, and `tables/foreign.py` decodes lists of byte strings.

    Example { Features features = 1 }                        Features { map<string, Feature> feature = 1 }
    Feature { oneof { BytesList 1, FloatList 2, Int64List 3 } }     each list: repeated value = 1, packed or not

Source: tensorflow/core/example/{example,feature}.proto; https://protobuf.dev/programming-guides/encoding/. If a feature
occurs twice, the last one counts. Unknown fields are skipped, as protobuf does, but in lists of numbers they are an
error. Bytes that are not such a message raise `DamagedError`.
"""

from __future__ import annotations

from struct import pack
from typing import TypeAlias

import numpy as np

from streamer.formats.failures import DamagedError

# Prefix of a field's kind: a list of byte strings, each of the kind behind it ("tf-list:image"). It is decoded by
# `streamer.tables.foreign.find_decoder`.
STRINGS = "tf-list:"
BYTES = 0x0A
FLOATS = 0x12
INTEGERS = 0x1A
NOTHING = 0
_LISTS = frozenset([BYTES, FLOATS, INTEGERS])
# Field number 1 with a length: a map entry, the key in it, a byte string or a packed run. Field number 2 with a length:
# the value in a map entry.
_ONE = 0x0A
_TWO = 0x12
# Tags of values that are not packed: field number 1 as a varint, and as four bytes.
_ONE_VARINT = 0x08
_ONE_FIXED = 0x0D
_LONGEST_VARINT = 10
# Runs of numbers with more bytes than this are parsed by numpy, which is then quicker than a loop.
_LONG_RUN = 64

# The tag of the list (BYTES, FLOATS or INTEGERS; NOTHING if there is no list), and its encoded bytes. A tuple takes
# 0.4 us less than a class.
Feature: TypeAlias = tuple[int, memoryview]


def parse_example(content: memoryview) -> dict[str, Feature]:
    """Returns the features of an Example by name, in the order of its bytes; raises DamagedError."""
    found: dict[str, Feature] = {}
    at = 0
    end = len(content)
    try:
        while at < end:
            tag = content[at]
            if tag == _ONE:
                start, at = _find_value(content, at + 1, end)
                _features(content, start, at, found)
            elif tag == _TWO:
                raise DamagedError("a tf.train.SequenceExample, not an Example", at)
            else:
                at = _skip_field(content, at, end)
    except (IndexError, UnicodeDecodeError) as error:
        raise DamagedError(f"not a tf.train.Example: {error}", at) from error
    return found


def byte_strings(content: memoryview) -> list[memoryview]:
    """Returns the values of a BytesList as views; raises DamagedError."""
    values = list[memoryview]()
    at = 0
    end = len(content)
    try:
        while at < end:
            if content[at] == _ONE:
                start, at = _find_value(content, at + 1, end)
                values.append(content[start:at])
            else:
                at = _skip_field(content, at, end)
    except IndexError as error:
        raise DamagedError(f"not a BytesList: {error}", at) from error
    return values


def floats(content: memoryview) -> memoryview:
    """Returns the values of a FloatList, 4 bytes each, as a view if they are packed in one run; raises DamagedError."""
    parts = list[memoryview]()
    at = 0
    end = len(content)
    try:
        while at < end:
            tag = content[at]
            if tag == _ONE:
                start, at = _find_value(content, at + 1, end)
            elif tag == _ONE_FIXED:
                start = at + 1
                at = at + 5
            else:
                raise DamagedError("not a FloatList", at)
            if at > end or (at - start) % 4:
                raise DamagedError("not a FloatList", start)
            parts.append(content[start:at])
    except IndexError as error:
        raise DamagedError(f"not a FloatList: {error}", at) from error
    return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))


def integers(content: memoryview) -> memoryview:
    """Returns the values of an Int64List as little-endian bytes, 8 for each; raises DamagedError."""
    values = list[int]()
    at = 0
    end = len(content)
    try:
        while at < end:
            tag = content[at]
            if tag == _ONE:
                start, at = _find_value(content, at + 1, end)
                values += _varints(content, start, at)
            elif tag == _ONE_VARINT:
                value, at = _varint(content, at + 1)
                values.append(value)
            else:
                raise DamagedError("not an Int64List", at)
    except IndexError as error:
        raise DamagedError(f"not an Int64List: {error}", at) from error
    return memoryview(pack(f"<{len(values)}Q", *values))


def _features(content: memoryview, at: int, end: int, found: dict[str, Feature]) -> None:
    """Adds the entries of the map in the bytes from `at` to `end` to `found`, by name."""
    while at < end:
        if content[at] == _ONE:
            start, at = _find_value(content, at + 1, end)
            name, feature = _entry(content, start, at)
            found[name] = feature
        else:
            at = _skip_field(content, at, end)


def _entry(content: memoryview, at: int, end: int) -> tuple[str, Feature]:
    """Returns name and value of an entry of the map."""
    name = ""
    feature = (NOTHING, content[:0])
    while at < end:
        tag = content[at]
        if tag == _ONE:
            start, at = _find_value(content, at + 1, end)
            name = str(content[start:at], "utf-8")
        elif tag == _TWO:
            start, at = _find_value(content, at + 1, end)
            feature = _feature(content, start, at)
        else:
            at = _skip_field(content, at, end)
    return name, feature


def _feature(content: memoryview, at: int, end: int) -> Feature:
    """Returns the last list of a Feature message, the bytes from `at` to `end`."""
    found = (NOTHING, content[:0])
    while at < end:
        tag = content[at]
        if tag in _LISTS:
            start, at = _find_value(content, at + 1, end)
            found = (tag, content[start:at])
        else:
            at = _skip_field(content, at, end)
    return found


def _find_value(content: memoryview, at: int, end: int) -> tuple[int, int]:
    """Returns start and stop of a value whose length is at byte `at`."""
    length = content[at]
    start = at + 1
    if length >= 0x80:
        length, start = _varint(content, at)
    stop = start + length
    if stop > end:
        raise DamagedError(f"a field of {length} bytes, of which {end - start} are there", at)
    return start, stop


def _varint(content: memoryview, at: int) -> tuple[int, int]:
    """Returns the unsigned number of 64 bits at byte `at`, and the byte behind it; raises DamagedError, IndexError."""
    byte = content[at]
    value = byte & 0x7F
    shift = 7
    at += 1
    while byte >= 0x80:
        byte = content[at]
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if shift > 7 * _LONGEST_VARINT:
            raise DamagedError("a number of more than 10 bytes", at)
    return value & 0xFFFFFFFFFFFFFFFF, at


def _varints(content: memoryview, at: int, end: int) -> list[int]:
    """Returns the numbers of a packed run."""
    if end - at > _LONG_RUN:
        return _many_varints(content[at:end])
    values = []
    while at < end:
        value, at = _varint(content, at)
        values.append(value)
    if at != end:
        raise DamagedError("not an Int64List", at)
    return values


def _many_varints(content: memoryview) -> list[int]:
    """Returns the numbers of a long packed run, parsed by numpy; raises DamagedError."""
    raw = np.frombuffer(content, np.uint8)
    ends = np.flatnonzero(raw < 0x80)
    starts = np.concatenate([[0], ends[:-1] + 1])
    widths = ends - starts + 1 if len(ends) else ends
    if not len(ends) or ends[-1] != len(raw) - 1 or widths.max() > _LONGEST_VARINT:
        raise DamagedError("not an Int64List", 0)
    values = np.zeros(len(ends), np.uint64)
    for place in range(int(widths.max())):
        wide = widths > place
        values[wide] |= (raw[starts[wide] + place].astype(np.uint64) & np.uint64(0x7F)) << np.uint64(7 * place)
    found: list[int] = values.tolist()
    return found


def _skip_field(content: memoryview, at: int, end: int) -> int:
    """Returns where the unknown field at byte `at` ends."""
    begin = at
    tag, at = _varint(content, at)
    kind = tag & 7
    if kind == 0:
        at = _varint(content, at)[1]
    elif kind == 1:
        at += 8
    elif kind == 2:
        at = _find_value(content, at, end)[1]
    elif kind == 5:
        at += 4
    else:
        raise DamagedError(f"a field of wire type {kind}", begin)
    if at > end or not tag >> 3:
        raise DamagedError("an unknown field that leaves its message", begin)
    return at
