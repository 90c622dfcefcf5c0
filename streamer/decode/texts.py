"""Reads texts and labels: txt becomes str, json an object, cls an int. Other bytes raise ValueError."""

from __future__ import annotations

import json

Content = bytes | bytearray | memoryview


def decode_text(content: Content) -> str:
    """Reads UTF-8."""
    return str(content, "utf-8")


def decode_json(content: Content) -> object:
    """Reads one JSON document."""
    try:
        document: object = json.loads(bytes(content))
    except json.JSONDecodeError as error:
        if error.msg.startswith("Extra data"):
            raise ValueError(f"{error}; JSON lines are read with format='jsonl'") from error
        raise
    return document


def decode_jsonl(content: Content) -> list[object]:
    """Reads one JSON document per line and skips empty lines."""
    return [json.loads(line) for line in bytes(content).splitlines() if line.strip()]


def decode_class(content: Content) -> int:
    """Reads a class number written in digits, as in WebDataset's `cls` files."""
    return int(bytes(content))
