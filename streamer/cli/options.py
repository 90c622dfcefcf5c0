"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from streamer.config import parse_bytes
from streamer.errors import ConfigError

_Value = TypeVar("_Value")

SECRETS = "keep secrets in a file (@options.json) or in the environment: everybody can read the command line"


def size(text: str) -> int:
    """200GB, 8MiB, 1000.

    Raises:
        argparse.ArgumentTypeError: not a size.
    """
    return _read(lambda: parse_bytes(text))


def size_or_auto(text: str) -> int | None:
    """As `size`; "auto" is None."""
    return None if text == "auto" else size(text)


def storage_options(text: str) -> dict[str, object]:
    """JSON, or @file with JSON.

    Raises:
        argparse.ArgumentTypeError: no such file, or not a JSON object.
    """
    return _read(lambda: _storage_options(text))


def add_dataset(parser: argparse.ArgumentParser) -> None:
    """The urls of a dataset, and where its manifest is."""
    parser.add_argument("urls", nargs="+", metavar="URL", help="a prefix, an object, or a pattern")
    parser.add_argument("--manifest", metavar="URL", help="of `streamer index --out`; without it the urls are listed")
    parser.add_argument(
        "--format", choices=("auto", "folder", "webdataset"), default="auto", help="default: from the names"
    )


def add_storage_options(parser: argparse.ArgumentParser) -> None:
    """--storage-options, as fsspec takes them."""
    parser.add_argument(
        "--storage-options",
        type=storage_options,
        default={},
        metavar="JSON",
        help=f"what fsspec takes for this store, e.g. '{{\"anon\": true}}'; {SECRETS}",
    )


def add_cache_dir(parser: argparse.ArgumentParser) -> None:
    """--cache-dir."""
    parser.add_argument(
        "--cache-dir",
        type=Path,
        metavar="DIR",
        help="the cache folder, on a local disk (default: $STREAMER_CACHE_DIR, else ~/.cache/streamer)",
    )


def _read(reader: Callable[[], _Value]) -> _Value:
    try:
        return reader()
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _storage_options(text: str) -> dict[str, object]:
    found = _json(_file(text[1:]) if text.startswith("@") else text)
    if not isinstance(found, dict):
        raise ConfigError(f"storage options are a JSON object, not {type(found).__name__}", field="storage_options")
    return found


def _file(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", field="storage_options") from error


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"storage options are not JSON: {error}", field="storage_options") from error
