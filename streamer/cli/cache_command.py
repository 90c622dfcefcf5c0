"""Implements `streamer cache stat | check | clear | export`, for `main.py`; `cache/maintenance.py` does the work."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from streamer.cli.exit_codes import Exit, explain_codes
from streamer.cli.parser import CommandParser
from streamer.cli.terminal import Terminal
from streamer.config import Environment, format_bytes
from streamer.errors import CacheError

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamer.manifest.table import Manifest

HELP = "look at a cache folder, check it, empty it, copy it"

DESCRIPTION = """\
Shows, checks, empties or copies a cache folder.
"""

EXAMPLES = """\
examples:
  streamer cache stat
  streamer cache check /nvme/streamer --repair
  streamer cache clear /nvme/streamer --yes
  streamer cache export /nvme/streamer /mnt/image
"""

NOTES = """\
`stat` may look at any time; the others want the folder for themselves and refuse while an engine uses it (stop
`streamer serve`, or wait three seconds after the last training job). `check --repair` removes what is damaged, which is
fetched again when it is needed.
"""

# Damaged chunks that are named; more are counted.
_DAMAGED_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the four actions, each with its options."""
    actions = parser.add_subparsers(
        dest="action",
        required=True,
        metavar="ACTION",
        title="actions",
        prog=parser.prog,
        parser_class=CommandParser,
    )
    _action(actions, "stat", _stat, "how many chunks of which dataset, and what they take on the disk")
    check = _action(
        actions, "check", _check, "read every chunk and compare it with its checksums; code 1 if one is wrong"
    )
    check.add_argument("--repair", action="store_true", help="remove what is wrong: it is fetched again when needed")
    clear = _action(actions, "clear", _clear, "remove everything but the folder itself: mount and permissions stay")
    clear.add_argument("--yes", action="store_true", help="do it; without this, only say what would go")
    export = _action(actions, "export", _export, "copy whole, checked chunks to another folder, for a read-only layer")
    export.add_argument(
        "target", type=Path, metavar="TARGET", help="made when missing; a local disk or a mounted image"
    )


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Runs the chosen action on the folder, or says that no cache has been made there; returns the exit code.

    Raises:
        CacheError: the folder cannot be read or written, or an engine uses it.
        ConfigError: no folder is named, and a variable of the environment is invalid.
    """
    from streamer.cache.folder import holds_no_cache

    arguments.folder = Path(os.path.abspath(arguments.folder or Environment.read().cache_dir))
    act: Callable[[argparse.Namespace, Terminal], int] = arguments.act
    try:
        if arguments.action != "export" and holds_no_cache(arguments.folder):
            terminal.line(f"{arguments.folder}: empty, no cache has been made here")
            return Exit.DONE
        return act(arguments, terminal)
    except CacheError:
        raise
    except OSError as error:
        raise CacheError(f"{error.filename or arguments.folder}: {error.strerror}") from error


def _action(
    actions: argparse._SubParsersAction[CommandParser],
    name: str,
    act: Callable[[argparse.Namespace, Terminal], int],
    text: str,
) -> CommandParser:
    """Adds an action, with the argument for the folder, and returns its parser; `act` runs it."""
    parser = actions.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=explain_codes(),
    )
    parser.add_argument(
        "folder",
        type=Path,
        nargs="?",
        metavar="DIR",
        help="the cache folder (default: $STREAMER_CACHE_DIR, else streamer in $XDG_CACHE_HOME or ~/.cache)",
    )
    parser.set_defaults(act=act)
    return parser


def _stat(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Shows the size of the cache, and a table of its datasets."""
    from streamer.cache.maintenance import stat

    found = stat(arguments.folder)
    terminal.line(f"{arguments.folder}: {found.chunks:,} chunks, {format_bytes(found.used_bytes)} on the disk")
    if found.datasets:
        ordered = sorted(found.datasets.items(), key=lambda item: -item[1][1])
        rows = [
            (name or "(unknown)", f"{chunks:,}", format_bytes(size), _share(arguments.folder, name, chunks))
            for name, (chunks, size) in ordered
        ]
        terminal.table(("dataset", "chunks", "bytes", "of it"), rows)
    return Exit.DONE


def _share(folder: Path, digest: str, chunks: int) -> str:
    """Returns the share of a dataset's chunks that `chunks` are, in percent; "-" without its manifest."""
    manifest = _manifest(folder, digest)
    return f"{chunks / manifest.chunks:.0%}" if manifest is not None and manifest.chunks else "-"


def _manifest(folder: Path, digest: str) -> Manifest | None:
    """Returns the manifest with this digest from the cache folder; None if it is missing or cannot be read."""
    from streamer.errors import ManifestError
    from streamer.manifest.table import Manifest

    path = folder / "manifests" / digest
    if not digest or not path.is_dir():
        return None
    try:
        return Manifest.open(path)
    except ManifestError:
        return None


def _check(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Compares all chunks with their checksums; returns `FAILED` if damaged ones are left."""
    from streamer.cache.maintenance import check

    with _lock_folder(arguments.folder), terminal.progress("checking", "chunks") as bar:
        report = check(arguments.folder, repair=arguments.repair, progress=bar.update)
    for key, reason in list(report.damaged.items())[:_DAMAGED_SHOWN]:
        terminal.line(f"damaged: {key}: {reason}")
    if len(report.damaged) > _DAMAGED_SHOWN:
        terminal.line(f"damaged: and {len(report.damaged) - _DAMAGED_SHOWN:,} more")
    done = " and removed" if arguments.repair and report.damaged else ""
    terminal.line(
        f"{report.chunks:,} chunks, {format_bytes(report.checked_bytes)}: {len(report.damaged):,} damaged{done}"
    )
    return Exit.FAILED if report.damaged and not arguments.repair else Exit.DONE


def _clear(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Empties the folder; without --yes only says what would be removed, and returns `USAGE`."""
    from streamer.cache.maintenance import clear, stat

    if not arguments.yes:
        found = stat(arguments.folder)
        terminal.line(
            f"{arguments.folder}: {found.chunks:,} chunks, {format_bytes(found.used_bytes)} would go; repeat with --yes"
        )
        return Exit.USAGE
    with _lock_folder(arguments.folder, exclusive=True):
        freed = clear(arguments.folder)
    terminal.line(f"{arguments.folder}: {format_bytes(freed)} freed")
    return Exit.DONE


def _export(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Copies whole, checked chunks to another folder."""
    from streamer.cache.maintenance import export

    target = Path(os.path.abspath(arguments.target))
    with _lock_folder(arguments.folder), terminal.progress("exporting", "chunks") as bar:
        there = export(arguments.folder, target, progress=bar.update)
    terminal.line(f"{target}: {there:,} chunks; mount it read-only and name it as a layer of the service's cache")
    return Exit.DONE


@contextlib.contextmanager
def _lock_folder(folder: Path, *, exclusive: bool = False) -> Iterator[None]:
    """Locks a folder, so that no engine uses it, and no other such command either if `exclusive`.

    Raises:
        CacheError: an engine or another command has locked it.
        OSError: the folder cannot be opened.
    """
    from streamer.cache.folder import LOCK_NAME

    how = (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB
    with ExitStack() as on_exit:
        for path in (folder / LOCK_NAME, folder):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            except (FileNotFoundError, PermissionError):
                if path == folder:
                    raise
                continue  # the folder has no lock file (an earlier version), or it is another user's
            on_exit.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, how)
            except BlockingIOError:
                raise CacheError(
                    f"{folder} is in use by an engine; stop `streamer serve`, or wait until the jobs are over",
                    where=str(folder),
                ) from None
        yield
