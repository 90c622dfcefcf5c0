"""Adds the options that several commands share, and parses their values.

Used by the commands here and in `tools/`, by `dataset.py`, and by `main.py` for the logins in urls.

Functions `add_...` add options to a parser or to a group of its help. Functions that argparse calls for a value raise
`argparse.ArgumentTypeError`, which argparse shows as an error of the option.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from streamer.base.extras import require_extra
from streamer.base.user_urls import take_logins
from streamer.config import parse_bytes
from streamer.errors import ConfigError
from streamer.formats import AUTO, BUILT_IN
from streamer.formats.names import field_name

if TYPE_CHECKING:
    from streamer.wire.messages import GetManifest

_Value = TypeVar("_Value")

# Sentence for the help of options that may hold secrets.
SECRETS = "keep secrets in a file (@options.json) or in the environment: everybody can read the command line"

# Larger numbers are typing errors. They would not fit into what a command makes of them, such as int64 or a task each.
_MAX_COUNT = (1 << 31) - 1
MAX_PARTS = 100_000
_MAX_SEED = (1 << 64) - 1
_MAX_NUMBER = 1e9

# A url with nothing behind its host, and a port with a path or without. After such a host a port follows, no key.
_HOST = re.compile(r"\w+://[^/]*")
_PORT = re.compile(r"\d+(/.*)?")


def size(text: str) -> int:
    """Parses a size such as 200GB, 8MiB or 1000 into bytes.

    Raises:
        argparse.ArgumentTypeError: it is not a size.
    """
    return _read(lambda: parse_bytes(text))


def positive_size(text: str) -> int:
    """Parses a size as `size` does; raises argparse.ArgumentTypeError also for 0."""
    if not (found := size(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size above 0")
    return found


def count(text: str) -> int:
    """Parses a number of samples or tokens: a whole number above 0, below 2**31.

    Raises:
        argparse.ArgumentTypeError: it is not such a number.
    """
    return parse_whole(text, 1, _MAX_COUNT)


def count_parts(text: str) -> int:
    """Parses a number of machines, processes, connections, looks or epochs: a whole number from 1 to `MAX_PARTS`.

    Raises:
        argparse.ArgumentTypeError: it is not such a number.
    """
    return parse_whole(text, 1, MAX_PARTS)


def seed(text: str) -> int:
    """Parses the seed of an order, a whole number from 0 to 2**64 - 1; raises argparse.ArgumentTypeError for others."""
    return parse_whole(text, 0, _MAX_SEED)


def parse_whole(text: str, least: int, most: int) -> int:
    """Parses a whole number.

    Args:
        text: the number in decimal digits.
        least: smallest number that is allowed, 0 or more.
        most: largest number that is allowed.

    Raises:
        argparse.ArgumentTypeError: it is not such a number.
    """
    # The length is looked at first, because Python converts no text of thousands of digits.
    found = int(text) if text.isdecimal() and len(text) <= len(str(most)) else -1
    if not least <= found <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most:,}")
    return found


def number(text: str) -> float:
    """Parses a number of seconds or a price, from 0 to 10**9.

    Raises:
        argparse.ArgumentTypeError: it is not such a number.
    """
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= _MAX_NUMBER:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to {_MAX_NUMBER:,.0f}")
    return found


def positive_number(text: str) -> float:
    """Parses a number as `number` does; raises argparse.ArgumentTypeError also for 0."""
    try:
        found = number(text)
    except argparse.ArgumentTypeError:
        found = 0.0
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0, at most {_MAX_NUMBER:,.0f}")
    return found


def size_or_auto(text: str) -> int | None:
    """Parses a size as `size` does, with its errors; "auto" becomes None."""
    return None if text == "auto" else size(text)


def rate(text: str) -> int:
    """Parses 200MB/s into bytes per second.

    Raises:
        argparse.ArgumentTypeError: it is not a size per second, or 0.
    """
    if not text.endswith("/s"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a rate: write a size per second, as 200MB/s")
    return positive_size(text.removesuffix("/s"))


def storage_options(text: str) -> dict[str, object]:
    """Parses the options of a store: a JSON object, or @FILE with one in it.

    Raises:
        argparse.ArgumentTypeError: the file cannot be read, or it is not a JSON object.
    """
    return _read(lambda: _mapping(text, "storage options"))


def parse_url_or_options(text: str) -> str | dict[str, object]:
    """Parses a url, which is returned unchanged, or a JSON object with url and options, or @FILE with one in it.

    Raises:
        argparse.ArgumentTypeError: the file cannot be read, or it is not a JSON object.
    """
    return _read(lambda: _mapping(text, "the options of a url")) if text.startswith(("{", "@")) else text


def parse_join(text: str) -> dict[str, object]:
    """Parses one --join: URL:KEY, URL:LEFT=RIGHT, or JSON (perhaps as @FILE) with arguments of `StreamingDataset.join`.

    Returns:
        The arguments by name. URL:KEY gives `url`, and as `on` the key, or the list of both names.

    Raises:
        argparse.ArgumentTypeError: no key is named, the file cannot be read, or the JSON is no object.
    """
    if text.startswith(("{", "@")):
        return _read(lambda: _mapping(text, "the options of a join"))
    url, _, key = text.rpartition(":")
    is_port = _HOST.fullmatch(url) and _PORT.fullmatch(key)
    if not url or not key or key.startswith("//") or is_port:
        raise argparse.ArgumentTypeError(
            f"{text!r} names no key: write URL:KEY, URL:LEFT=RIGHT where it has two names, or JSON (docs/joins.md)"
        )
    left, equal, right = key.partition("=")
    return {"url": url, "on": [left, right] if equal else left}


def add_dataset(parser: argparse.ArgumentParser) -> None:
    """Adds the group of options that name a dataset: its urls, manifest, format and store."""
    group = parser.add_argument_group("dataset")
    add_urls(group)
    add_manifest(group)
    add_sample_choice(group)
    add_storage_options(group)


def add_urls(group: argparse._ActionsContainer) -> None:
    """Adds the argument for the urls of a dataset, `urls`."""
    group.add_argument(
        "urls", nargs="+", metavar="URL", help="a prefix or folder, an object, or a pattern: shard-{000000..001023}.tar"
    )


def add_manifest(group: argparse._ActionsContainer) -> None:
    """Adds --manifest, the place of the manifest."""
    group.add_argument(
        "--manifest", metavar="URL", help="where `streamer index --out` wrote it (default: the urls are listed)"
    )


def add_join(group: argparse._ActionsContainer) -> None:
    """Adds --join, which can be repeated: `join` is a list of the results of `parse_join`."""
    group.add_argument(
        "--join",
        type=parse_join,
        action="append",
        default=[],
        metavar="URL:KEY",
        help="a dataset whose fields the samples get, by a field that both have; URL:LEFT=RIGHT where it has two "
        "names; or JSON with url, on, columns, missing, validate, and format, format_options, manifest, "
        "storage_options of its own (docs/joins.md). Can be repeated",
    )


def add_format(group: argparse._ActionsContainer) -> None:
    """Adds --format, --format-options and --extensions, which stand for format= of StreamingDataset."""
    group.add_argument(
        "--format", default=AUTO, metavar="NAME", help=f"one of {', '.join(BUILT_IN)} (default: by the names of files)"
    )
    group.add_argument(
        "--format-options",
        type=_format_options,
        default={},
        metavar="JSON",
        help='what the format takes, e.g. \'{"columns": ["image"]}\' (docs/formats.md)',
    )
    group.add_argument(
        "--extensions",
        type=_extensions,
        metavar="JPG,PNG",
        help="which raw files are samples (default: in class folders the commonest, else all)",
    )


def add_sample_choice(group: argparse._ActionsContainer) -> None:
    """Adds the options of `add_format`, --damaged, and --no-shuffle, which stands for shuffle=False of a job."""
    add_format(group)
    group.add_argument(
        "--damaged",
        choices=("raise", "skip"),
        default="raise",
        help="skip: leave damaged files out, and name them (default: raise an error)",
    )
    group.add_argument(
        "--no-shuffle", action="store_true", help="raw files in the order of their keys, as jobs with shuffle=False"
    )


def add_choice_to_request(request: GetManifest, arguments: argparse.Namespace) -> GetManifest:
    """Returns the request for a manifest with the options of `add_sample_choice`, except --format, which it has."""
    from msgspec.structs import replace

    return replace(
        request,
        extensions=arguments.extensions,
        skip_damaged=arguments.damaged == "skip",
        in_key_order=arguments.no_shuffle,
        format_options=json.dumps(arguments.format_options).encode(),
    )


def _format_options(text: str) -> dict[str, object]:
    return _read(lambda: _mapping(text, "format options"))


def _extensions(text: str) -> list[str]:
    names = [name.strip().lstrip(".") for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list such as jpg,png")
    return sorted(set(map(field_name, names)))


def add_executor(group: argparse._ActionsContainer, default: str | None = "processes") -> None:
    """Adds --executor; a `default` of None means that the engine of this machine works, without tasks."""
    group.add_argument(
        "--executor",
        default=default,
        metavar="WHERE",
        help="what runs the tasks: processes (one for each core), processes:8, dask:tcp://scheduler:8786, or ray:auto "
        f"(default: {default or 'no tasks, the engine of this machine'})",
    )


def parse_function(text: str) -> Callable[..., object]:
    """Imports the function that MODULE:NAME names, from the working folder, too: puts that first into `sys.path`.

    Raises:
        argparse.ArgumentTypeError: it cannot be found, or it is not a function.
        Exception: any other error of its module.
    """
    module, colon, name = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError(f"{text!r}: write MODULE:NAME, as job:count for def count(sample) in job.py")
    sys.path.insert(0, os.getcwd())
    try:
        found = attrgetter(name)(import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error
    if not callable(found):
        raise argparse.ArgumentTypeError(f"{text!r} is not a function")
    return found  # type: ignore[no-any-return]


def move_logins(arguments: argparse.Namespace) -> None:
    """Moves the logins in a command's urls to its storage options, before the urls are shown or stored.

    The urls of --join keep theirs: each is a dataset of its own, and `StreamingDataset` moves its logins.

    Args:
        arguments: parsed arguments of any command, which are changed; left alone if they have no storage options.

    Raises:
        ConfigError: a login is not understood.
    """
    if not hasattr(arguments, "storage_options"):
        return
    for name in ("url", "urls", "manifest", "annotations", "out"):
        given = getattr(arguments, name, None)
        if given is None:
            continue
        own = "out_storage_options"
        kept = own if name == "out" and getattr(arguments, own, None) is not None else "storage_options"
        options = getattr(arguments, kept) or {}
        if isinstance(given, dict):  # these are annotations with options
            urls, moved = take_logins([str(given.get("url", ""))], options)
        else:
            urls, moved = take_logins(given if isinstance(given, list) else [str(given)], options)
        if moved is options:
            continue
        setattr(arguments, kept, dict(moved))
        if isinstance(given, dict):
            setattr(arguments, name, {**given, "url": urls[0]})
        else:
            setattr(arguments, name, list(urls) if isinstance(given, list) else urls[0])


def add_storage_options(group: argparse._ActionsContainer) -> None:
    """Adds --storage-options: a mapping in fsspec's form, empty by default."""
    group.add_argument(
        "--storage-options",
        type=storage_options,
        default={},
        metavar="JSON",
        help=f"what fsspec takes for this store, e.g. '{{\"anon\": true}}'; {SECRETS}",
    )


def add_cache_dir(group: argparse._ActionsContainer) -> None:
    """Adds --cache-dir; None if it is not given."""
    group.add_argument(
        "--cache-dir",
        type=Path,
        metavar="DIR",
        help="the cache folder, on a local disk (default: $STREAMER_CACHE_DIR, else streamer in $XDG_CACHE_HOME or "
        "~/.cache)",
    )


def add_figures(parser: argparse.ArgumentParser, curves: str) -> None:
    """Adds the group of --json, --json-file and --plot, for the figures of a measurement.

    Args:
        parser: Parser of the command.
        curves: Title of what --plot draws.
    """
    group = parser.add_argument_group("output")
    add_json(group)
    group.add_argument("--json-file", type=Path, metavar="FILE", help="also write every figure, as JSON")
    group.add_argument("--plot", type=Path, metavar="FILE", help=f"also draw {curves} (needs matplotlib)")


def add_json(group: argparse._ActionsContainer) -> None:
    """Adds --json."""
    group.add_argument("--json", action="store_true", help="print JSON alone, for programs")


def check_places(plot: Path | None, json_file: Path | None) -> None:
    """Checks the files of --plot and --json-file before a long measurement; None where one is not wanted.

    Raises:
        ConfigError: matplotlib is missing or does not write such files, or a folder does not exist.
    """
    if plot is not None:
        with require_extra("--plot", field="plot"):
            from matplotlib.backend_bases import FigureCanvasBase
            from matplotlib.figure import Figure  # noqa: F401 - it is looked for here and used by the report
        if plot.suffix.lstrip(".").lower() not in (kinds := FigureCanvasBase.get_supported_filetypes()):
            raise ConfigError(
                f"--plot {plot}: matplotlib does not write {plot.suffix or 'files without an ending'}; it writes "
                + ", ".join(sorted(f".{kind}" for kind in kinds)),
                field="plot",
            )
    for option, path in (("--plot", plot), ("--json-file", json_file)):
        if path is not None and not path.parent.is_dir():
            raise ConfigError(f"{option} {path}: there is no folder {path.parent}", field=option[2:].replace("-", "_"))


def _read(reader: Callable[[], _Value]) -> _Value:
    """Returns what the reader of a value returns; turns its ConfigError into the error that argparse shows."""
    try:
        return reader()
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _file(path: str, field: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", field=field) from error


def _mapping(text: str, what: str) -> dict[str, object]:
    """Returns the JSON object in a text or, after @, in a file; raises ConfigError, in which `what` names the value."""
    field = what.replace(" ", "_")
    try:
        found = json.loads(_file(text[1:], field) if text.startswith("@") else text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{what} are not JSON: {error}", field=field) from error
    if not isinstance(found, dict):
        raise ConfigError(f"{what} are a JSON object, not {type(found).__name__}", field=field)
    return found
