"""A line to an engine that is there already: for commands that look and never start one."""

from __future__ import annotations

import argparse
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from streamer.errors import EngineUnavailableError

if TYPE_CHECKING:
    from streamer.client.engine_client import EngineClient
    from streamer.client.settings import ClientSettings

# For interactive use: an engine that does not answer at once is reported as not running.
CONNECT_SECONDS = 2.0


def add_socket(parser: argparse.ArgumentParser) -> None:
    """--socket."""
    parser.add_argument(
        "--socket",
        type=Path,
        metavar="PATH",
        help="of the engine (default: $STREAMER_ENGINE, else the service or the embedded engine of this user)",
    )


def engine_client(arguments: argparse.Namespace) -> EngineClient:
    """A client of the engine that the arguments or the environment name.

    Raises:
        EngineUnavailableError: none is named and none is found.
    """
    from streamer.client.engine_client import EngineClient
    from streamer.client.settings import ClientSettings

    return EngineClient(found(arguments.socket, ClientSettings.from_environment()))


def found(socket: Path | None, settings: ClientSettings) -> ClientSettings:
    """The settings that reach an engine without starting one.

    Raises:
        EngineUnavailableError: none is named and none is found.
    """
    if socket is not None:
        return replace(settings, engine=f"unix:{os.path.abspath(socket)}", connect_seconds=CONNECT_SECONDS)
    if settings.external:
        return replace(settings, connect_seconds=CONNECT_SECONDS)
    candidates = (settings.runtime_dir / "engine.sock", settings.socket_path)
    for candidate in candidates:
        if _is_socket(candidate):
            return replace(settings, engine=f"unix:{candidate}", connect_seconds=CONNECT_SECONDS)
    raise EngineUnavailableError(
        f"no engine runs here: neither {' nor '.join(map(str, candidates))} is there; name one with --socket or "
        "STREAMER_ENGINE"
    )


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return False
