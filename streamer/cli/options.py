"""Options that several commands share, and the parsers of their values."""

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

from streamer.base.logins import take_logins
from streamer.config import parse_bytes
from streamer.errors import ConfigError
from streamer.formats import AUTO, BUILT_IN
from streamer.formats.names import field_name

if TYPE_CHECKING:
    from streamer.wire.messages import GetManifest

_Value = TypeVar("_Value")

SECRETS = "keep secrets in a file (@options.json) or in the environment: everybody can read the command line"

# A name of a host with a port, in which no key of a join can follow the colon.
_HOST = re.compile(r"\w+://[^/]*")
_PORT = re.compile(r"\d+(/.*)?")


def size(text: str) -> int:
    """Parses 200GB, 8MiB, 1000.

    Raises:
        argparse.ArgumentTypeError: it is not a size.
    """
    return _read(lambda: parse_bytes(text))


def count(text: str) -> int:
    """Parses a number above 0.

    Raises:
        argparse.ArgumentTypeError: it is not such a number.
    """
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def size_or_auto(text: str) -> int | None:
    """Parses a size; "auto" becomes None."""
    return None if text == "auto" else size(text)


def rate(text: str) -> int:
    """Parses 200MB/s into bytes per second.

    Raises:
        argparse.ArgumentTypeError: it is not a size per second.
    """
    if not text.endswith("/s"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a rate: write a size per second, as 200MB/s")
    return size(text.removesuffix("/s"))


def storage_options(text: str) -> dict[str, object]:
    """Parses JSON, or @file with JSON.

    Raises:
        argparse.ArgumentTypeError: the file does not exist, or it is not a JSON object.
    """
    return _read(lambda: _mapping(text, "storage options"))


def parse_url_or_options(text: str) -> str | dict[str, object]:
    """Parses a url, or JSON with a url and options.

    Raises:
        argparse.ArgumentTypeError: it is not a JSON object.
    """
    return _read(lambda: _mapping(text, "the options of a url")) if text.startswith(("{", "@")) else text


def parse_join(text: str) -> dict[str, object]:
    """Parses URL:KEY, URL:LEFT=RIGHT, or JSON with url, on and more arguments of `StreamingDataset.join`.

    Raises:
        argparse.ArgumentTypeError: no key is named, or it is not a JSON object.
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
    """Adds the group of options that name a dataset and choose its samples."""
    group = parser.add_argument_group("dataset")
    add_urls(group)
    add_manifest(group)
    add_sample_choice(group)
    add_storage_options(group)


def add_urls(group: argparse._ActionsContainer) -> None:
    """Adds the urls of a dataset."""
    group.add_argument(
        "urls", nargs="+", metavar="URL", help="a prefix or folder, an object, or a pattern: shard-{000000..001023}.tar"
    )


def add_manifest(group: argparse._ActionsContainer) -> None:
    """Adds the place of the manifest."""
    group.add_argument(
        "--manifest", metavar="URL", help="where `streamer index --out` wrote it (default: the urls are listed)"
    )


def add_join(group: argparse._ActionsContainer) -> None:
    """Adds the option for StreamingDataset.join."""
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
    """Adds the options for StreamingDataset's format=, with the extensions of a Folder."""
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
    """Adds the options for the format, for damaged files, and for shuffle=False."""
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
    """Fills the options of `add_sample_choice` into the request."""
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
    """Adds the option for the executor of tasks."""
    group.add_argument(
        "--executor",
        default=default,
        metavar="WHERE",
        help="what runs the tasks: processes (one for each core), processes:8, dask:tcp://scheduler:8786, or ray:auto "
        f"(default: {default or 'no tasks, the engine of this machine'})",
    )


def parse_function(text: str) -> Callable[..., object]:
    """Imports a function that is named as MODULE:NAME.

    The module is imported from this folder too, as `python -m` does.

    Raises:
        argparse.ArgumentTypeError: it cannot be imported, or it is not a function.
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
    """Moves the logins of a command's urls into its storage options, before anything shows or stores the urls.

    Raises:
        ConfigError: a login that is not understood.
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
        if isinstance(given, dict):  # annotations with options
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
    """Adds --storage-options, in fsspec's form."""
    group.add_argument(
        "--storage-options",
        type=storage_options,
        default={},
        metavar="JSON",
        help=f"what fsspec takes for this store, e.g. '{{\"anon\": true}}'; {SECRETS}",
    )


def add_cache_dir(group: argparse._ActionsContainer) -> None:
    """Adds --cache-dir."""
    group.add_argument(
        "--cache-dir",
        type=Path,
        metavar="DIR",
        help="the cache folder, on a local disk (default: $STREAMER_CACHE_DIR, else ~/.cache/streamer)",
    )


def add_figures(parser: argparse.ArgumentParser, curves: str) -> None:
    """Adds the group of options for the figures of a measurement.

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
    """Checks before a long measurement whether its files can be written.

    Raises:
        ConfigError: matplotlib is missing, it does not write this kind of file, or the folder does not exist.
    """
    if plot is not None:
        try:
            from matplotlib.backend_bases import FigureCanvasBase
            from matplotlib.figure import Figure  # noqa: F401 - it is looked for here and used by the report
        except ImportError as error:
            raise ConfigError("--plot needs matplotlib: pip install 'streamer-data[plots]'", field="plot") from error
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
    field = what.replace(" ", "_")
    try:
        found = json.loads(_file(text[1:], field) if text.startswith("@") else text)
    except ValueError as error:
        raise ConfigError(f"{what} are not JSON: {error}", field=field) from error
    if not isinstance(found, dict):
        raise ConfigError(f"{what} are a JSON object, not {type(found).__name__}", field=field)
    return found
