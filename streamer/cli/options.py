"""Options that several commands share, and the parsers of their values."""

from __future__ import annotations

import argparse
import json
import os
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


def storage_options(text: str) -> dict[str, object]:
    """Parses JSON, or @file with JSON.

    Raises:
        argparse.ArgumentTypeError: the file does not exist, or it is not a JSON object.
    """
    return _read(lambda: _mapping(_file(text[1:]) if text.startswith("@") else text, "storage options"))


def parse_url_or_options(text: str) -> str | dict[str, object]:
    """Parses a url, or JSON with a url and options.

    Raises:
        argparse.ArgumentTypeError: it is not a JSON object.
    """
    return _read(lambda: _mapping(text, "the options of a url")) if text.startswith("{") else text


def mapping(text: str) -> dict[str, object]:
    """Parses a JSON object.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    return _read(lambda: _mapping(text, "options"))


def add_dataset(parser: argparse.ArgumentParser) -> None:
    """Adds the urls of a dataset, and the place of its manifest."""
    parser.add_argument("urls", nargs="+", metavar="URL", help="a prefix, an object, or a pattern")
    parser.add_argument("--manifest", metavar="URL", help="of `streamer index --out`; without it the urls are listed")
    add_sample_choice(parser)


def add_join(parser: argparse.ArgumentParser) -> None:
    """Adds the options for StreamingDataset.join and select(where=...)."""
    parser.add_argument(
        "--join",
        type=parse_url_or_options,
        action="append",
        default=[],
        metavar="URL",
        help="a dataset that the samples are joined to; or JSON with url, on, columns, missing, validate, and its "
        "format, format_options, storage_options (docs/joins.md). Can be repeated",
    )
    parser.add_argument("--on", metavar="KEY", help="of --join: a name in both sides, or LEFT=RIGHT")
    parser.add_argument(
        "--where", metavar="CONDITION", help="only samples that match, e.g. 'width >= 256' (docs/select.md)"
    )


def add_format(parser: argparse.ArgumentParser, name: str = "--format") -> None:
    """Adds the options for StreamingDataset's format=, with the extensions of a Folder."""
    parser.add_argument(name, default=AUTO, metavar="NAME", help=f"{', '.join(BUILT_IN)} (default: by the names)")
    parser.add_argument(
        "--format-options",
        type=_format_options,
        default="{}",
        metavar="JSON",
        help='of the format, e.g. \'{"columns": ["image"]}\' (docs/formats.md)',
    )
    parser.add_argument(
        "--extensions",
        type=_extensions,
        metavar="JPG,PNG",
        help="of the raw files that are samples (default: in class folders the commonest, else all)",
    )


def add_sample_choice(parser: argparse.ArgumentParser) -> None:
    """Adds the options for StreamingDataset's format=, Index(damaged=...) and shuffle=False."""
    add_format(parser)
    parser.add_argument(
        "--index-errors",
        choices=("raise", "skip"),
        default="raise",
        help="skip: leave damaged tars out, and name them (default: raise)",
    )
    parser.add_argument(
        "--no-shuffle", action="store_true", help="raw files in the order of their keys, as for jobs with shuffle=False"
    )


def add_choice_to_request(request: GetManifest, arguments: argparse.Namespace) -> GetManifest:
    """Fills the options of `add_sample_choice` into the request."""
    from msgspec.structs import replace

    return replace(
        request,
        extensions=arguments.extensions,
        skip_damaged=arguments.index_errors == "skip",
        in_key_order=arguments.no_shuffle,
        format_options=arguments.format_options.encode(),
    )


def _format_options(text: str) -> str:
    _read(lambda: _mapping(text, "format options"))
    return text


def _extensions(text: str) -> list[str]:
    names = [name.strip().lstrip(".") for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list such as jpg,png")
    return sorted(set(map(field_name, names)))


def add_on(parser: argparse.ArgumentParser, default: str | None = "processes") -> None:
    """Adds the option for the executor of tasks."""
    parser.add_argument(
        "--on",
        default=default,
        metavar="WHERE",
        help="processes (one for each core), processes:8, dask:tcp://scheduler:8786, or ray:auto (default: "
        f"{default or 'the engine of this machine'})",
    )


def count_of(text: str) -> str | Callable[..., object]:
    """Reads what `streamer.measure_lengths` takes: the name of a field, or a function as module:function.

    The module is imported, from this folder too, as `python -m` does.
    """
    module, colon, name = text.partition(":")
    if not colon:
        return text
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


def add_storage_options(parser: argparse.ArgumentParser) -> None:
    """Adds --storage-options, in fsspec's form."""
    parser.add_argument(
        "--storage-options",
        type=storage_options,
        default={},
        metavar="JSON",
        help=f"what fsspec takes for this store, e.g. '{{\"anon\": true}}'; {SECRETS}",
    )


def add_cache_dir(parser: argparse.ArgumentParser) -> None:
    """Adds --cache-dir."""
    parser.add_argument(
        "--cache-dir",
        type=Path,
        metavar="DIR",
        help="the cache folder, on a local disk (default: $STREAMER_CACHE_DIR, else ~/.cache/streamer)",
    )


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
    for option, path in (("plot", plot), ("json", json_file)):
        if path is not None and not path.parent.is_dir():
            raise ConfigError(f"--{option} {path}: there is no folder {path.parent}", field=option)


def _read(reader: Callable[[], _Value]) -> _Value:
    try:
        return reader()
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _file(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", field="storage_options") from error


def _mapping(text: str, what: str) -> dict[str, object]:
    field = what.replace(" ", "_")
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{what} are not JSON: {error}", field=field) from error
    if not isinstance(found, dict):
        raise ConfigError(f"{what} are a JSON object, not {type(found).__name__}", field=field)
    return found
