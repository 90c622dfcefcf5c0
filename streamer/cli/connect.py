"""Connects to a running engine, for `streamer stat` and `streamer top`, which never start one."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from streamer.errors import ConfigError, EngineUnavailableError, ProtocolVersionError

if TYPE_CHECKING:
    from streamer.client.engine_client import EngineClient
    from streamer.client.settings import ClientSettings

# Time for a connection, short for interactive use: an engine that does not answer at once is reported as not running.
CONNECT_SECONDS = 2.0


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Adds the group of the options --socket and --cache-dir, which choose an engine."""
    group = parser.add_argument_group("engine")
    group.add_argument(
        "--socket",
        type=Path,
        metavar="PATH",
        help="where the engine listens (default: $STREAMER_ENGINE, else the only engine in the runtime folder)",
    )
    group.add_argument(
        "--cache-dir", type=Path, metavar="DIR", help="the embedded engine of this cache folder, whatever else runs"
    )


def engine_client(arguments: argparse.Namespace) -> EngineClient:
    """Returns a client of the engine that arguments or environment name, or of the only running one.

    It asks the engine for statistics once. The caller closes the client. During an upgrade an engine may have a
    neighbouring version of the protocol. As the messages for statistics are the same there, the client then uses the
    engine's version, and can be used for statistics alone.

    Args:
        arguments: those of `add_engine_options`.

    Raises:
        EngineUnavailableError: no engine runs, or the named one does not answer or refuses this user.
        ConfigError: no engine is named, and several run; or a variable of the environment is invalid.
        ProtocolVersionError: the engine's version is not a neighbouring one.
    """
    from streamer.client.engine_client import EngineClient
    from streamer.client.settings import ClientSettings
    from streamer.wire.messages import PROTOCOL

    settings = find_engine(arguments.socket, arguments.cache_dir, ClientSettings.from_environment())
    client = EngineClient(settings)
    try:
        client.statistics()
    except ProtocolVersionError as error:
        client.close()
        protocol = int(str(error.details.get("engine", PROTOCOL)))
        if abs(protocol - PROTOCOL) != 1:
            raise
        client = EngineClient(replace(settings, protocol=protocol))
    except BaseException:
        client.close()
        raise
    return client


def find_engine(socket: Path | None, cache_dir: Path | None, settings: ClientSettings) -> ClientSettings:
    """Returns the settings that reach the named engine, or the only running one, without starting one.

    Args:
        socket: path of the engine's socket, or None.
        cache_dir: cache folder of an embedded engine, or None. It is used if there is no `socket`.
        settings: settings from the environment, which may name an engine, too.

    Raises:
        EngineUnavailableError: no engine is named or found, or no embedded one of the cache folder runs.
        ConfigError: no engine is named, and several run; the message lists them.
    """
    from streamer.client.runtime_folder import accepts_connections, describe_engine, find_engines

    named = None
    if socket is not None:
        named = _reachable_at(Path(os.path.abspath(socket)), settings)
    elif cache_dir is not None:
        folder = Path(os.path.abspath(cache_dir))
        path = replace(settings, engine=None, cache_dir=folder).socket_path
        if not accepts_connections(path):
            raise EngineUnavailableError(
                f"no embedded engine of the cache folder {folder} runs: none listens at {path}; one that serves it as "
                "a service is found by --socket"
            )
        named = replace(_reachable_at(path, settings), is_configured=False)
    elif settings.external:
        named = replace(settings, connect_seconds=CONNECT_SECONDS)
    if named is not None:
        return named
    running = find_engines(settings.runtime_dir)
    if not running:
        raise EngineUnavailableError(
            f"no engine runs here: none listens in {settings.runtime_dir}; name one with --socket, --cache-dir or "
            "STREAMER_ENGINE (embedded engines end with the last process that uses them)"
        )
    if len(running) > 1:
        listed = "; ".join(describe_engine(path, settings.token()) for path in running)
        raise ConfigError(
            f"{len(running)} engines run in {settings.runtime_dir}: {listed}; choose one with --cache-dir or --socket",
            field="socket",
        )
    return replace(_reachable_at(running[0], settings), is_configured=False)


def _reachable_at(path: Path, settings: ClientSettings) -> ClientSettings:
    """Returns the settings with the engine at this socket, and a short time to connect."""
    return replace(settings, engine=f"unix:{path}", connect_seconds=CONNECT_SECONDS)
