"""The JSON in which samples are expected. Needs numpy alone, because scripts in `make/` run beside other packages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from hashlib import blake2b
from pathlib import Path

import numpy as np

KEY = "__key__"
EXPECTED = "expected.json"


def write_expected(folder: Path, samples: Sequence[Mapping[str, object]]) -> None:
    """Writes what a library's reader says; the key of a sample, if it has one, is text."""
    told = [{name: value if name == KEY else summary(value) for name, value in sample.items()} for sample in samples]
    (folder / EXPECTED).write_text("[\n" + ",\n".join(json.dumps(sample) for sample in told) + "\n]\n")


def summary(value: object) -> object:
    """Returns a decoded value as JSON: bytes and arrays by their digest."""
    if isinstance(value, np.ndarray):
        # Byte order does not matter, dtype and shape do.
        plain = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
        return {"array": plain.dtype.str, "shape": list(value.shape), "blake2b": _digest(plain.tobytes())}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, bytes | bytearray | memoryview):
        return {"bytes": len(value), "blake2b": _digest(bytes(value))}
    if isinstance(value, Mapping):
        return {str(name): summary(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [summary(each) for each in value]
    if isinstance(value, Decimal):
        return str(value)
    return value


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=12).hexdigest()
