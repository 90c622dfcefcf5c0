"""States in files: as JSON, in a checkpoint of torch, or in the lines of a log."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from pickle import UnpicklingError

from streamer.errors import ConfigError
from streamer.order.audit import LOG_MARK

_FIELDS = {"format", "order_id", "epoch", "position"}


def states_in(path: Path) -> Iterator[Mapping[str, object]]:
    """Yields every state of a file.

    Raises:
        ConfigError: the file holds more than plain values and tensors, or torch is missing.
        OSError: it cannot be read.
    """
    if zipfile.is_zipfile(path):
        yield from _find_states(_checkpoint(path))
        return
    text = path.read_text(errors="replace")
    try:
        yield from _find_states(json.loads(text))
    except ValueError:
        for line in text.splitlines():
            yield from _parse_line(line)


def _parse_line(line: str) -> Iterator[Mapping[str, object]]:
    if LOG_MARK not in line:
        return
    try:
        # A log of JSON has the message in its field `body`.
        body = json.loads(line)["body"] if line.startswith("{") else line
        state, _ = json.JSONDecoder().raw_decode(body, body.index(LOG_MARK) + len(LOG_MARK))
    except (ValueError, KeyError, TypeError):  # another program's line, or one that a kill has cut
        return
    yield from _find_states(state)


def _checkpoint(path: Path) -> object:
    try:
        import torch
    except ImportError as error:
        raise ConfigError(f"{path} is a checkpoint of torch, which is not installed: {error}", field="files") from error
    try:
        # Tensors stay on the disk; objects of any other class are refused.
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (UnpicklingError, RuntimeError) as error:
        raise ConfigError(
            f"{path}: torch.load(weights_only=True) refuses it; save the loader's state by itself, as JSON "
            f"({str(error).splitlines()[0]})",
            field="files",
        ) from error


def _find_states(value: object) -> Iterator[Mapping[str, object]]:
    match value:
        case Mapping() if value.keys() >= _FIELDS:
            yield value
        case Mapping():
            for inner in value.values():
                yield from _find_states(inner)
        case list() | tuple():
            for inner in value:
                yield from _find_states(inner)
