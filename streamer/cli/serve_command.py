"""Implements `streamer serve`, which runs the engine as a service (`service/lifecycle.py`). `main.py` runs it."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from streamer.cli.exit_codes import Exit
from streamer.cli.options import add_cache_dir, number, size
from streamer.cli.terminal import Terminal
from streamer.config import EngineConfig, Environment, check_variables

HELP = "run the engine as a service"

DESCRIPTION = """\
Runs the engine in the foreground, as a service for all jobs of this machine or as the sidecar of a pod, until SIGTERM
or Ctrl-C. Jobs of several users need [[datasets]] in its configuration; see below.
"""

EXAMPLES = """\
examples:
  streamer serve --cache-dir /nvme/streamer --cache-bytes 200GB
  streamer serve --config /etc/streamer.toml --socket /run/streamer/engine.sock
  # what a trainer needs
  STREAMER_ENGINE=unix:/run/streamer/engine.sock torchrun train.py
"""

NOTES = """\
Trainers need one setting, STREAMER_ENGINE, and, where they see the cache folder at another path, STREAMER_CACHE_DIR.
SIGTERM and Ctrl-C wait up to --drain-seconds for what is on its way, and a second one ends that wait. SIGHUP reads the
configuration again. One engine per cache folder.
With [[datasets]] in its configuration the service holds the credentials: it serves these and nothing else, and trainers
need none. Without them it serves one user, the first that asks for data: every url but local files and
loopback, link-local and metadata addresses.

/etc/streamer.toml:
  [cache]
  directory = "/nvme/streamer"
  limit_bytes = "200GB"
  group = "trainers"                 # may connect, and read the cache

  [[datasets]]
  url = "s3://bucket/train/"
  storage_options = { endpoint_url = "https://s3.example.org" }
  storage_options_file = "/etc/streamer/bucket.json"

Every option has a variable: STREAMER_CACHE_BYTES, STREAMER_SOCKET, STREAMER_HTTP, STREAMER_CONFIG ...; an option
counts more than the variable, the variable more than the file (docs/configuration.md).
"""

# Options that are settings of the service, by their names in `service/configuration.py`.
_OPTIONS = ("cache_dir", "cache_bytes", "memory_bytes", "socket", "group", "http", "drain_seconds")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="all settings, as TOML; see below")
    cache = parser.add_argument_group("cache")
    add_cache_dir(cache)
    cache.add_argument(
        "--cache-bytes",
        type=_size,
        metavar="SIZE",
        help="hard limit of the cache (default: 80%% of what is free or in the cache)",
    )
    cache.add_argument(
        "--memory-bytes",
        type=_size,
        metavar="SIZE",
        help="buffers for bytes on their way (default: a quarter of the memory, up to 1GiB)",
    )
    clients = parser.add_argument_group("clients")
    clients.add_argument(
        "--socket", type=Path, metavar="PATH", help="where to listen (default: engine.sock in the runtime folder)"
    )
    clients.add_argument("--group", metavar="GROUP", help="its members may connect and read the cache; name or number")
    clients.add_argument(
        "--http", metavar="HOST:PORT", help="a page at /, /metrics, /healthz, /readyz; or off (default: 127.0.0.1:9464)"
    )
    clients.add_argument(
        "--drain-seconds",
        type=number,
        metavar="SECONDS",
        help="how long SIGTERM waits for what is on its way (default: 20)",
    )


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Serves until SIGTERM or SIGINT; shows what to set as STREAMER_ENGINE once clients can connect.

    Raises:
        ConfigError: a setting is unknown or invalid, or the socket or the page cannot be opened.
        CacheError: the cache folder cannot be used.
        Exception: any error of the engine.
    """
    import uvloop

    from streamer.service.lifecycle import EngineService
    from streamer.service.sd_notify import Notifier

    environment = Environment.read()
    check_variables()
    config = configuration(arguments, environment)
    if not arguments.debug and environment.log_level is None:
        logging.getLogger().setLevel(logging.INFO)
    life = EngineService(
        config,
        lambda: terminal.line(f"listening: STREAMER_ENGINE=unix:{config.socket_path}"),
        lambda: configuration(arguments, environment),
        Notifier(environment.notify_socket, environment.watchdog_seconds),
    )
    uvloop.run(life.run())
    return Exit.DONE


def configuration(arguments: argparse.Namespace, environment: Environment) -> EngineConfig:
    """Returns the service's configuration from file, environment and command line; called again at each reload.

    Raises:
        ConfigError: a setting is unknown or invalid, or a file cannot be read.
    """
    from streamer.service.configuration import read_service_config

    return read_service_config(
        arguments.config or environment.config, environment, {name: getattr(arguments, name) for name in _OPTIONS}
    )


def _size(text: str) -> int | str:
    # The text "auto" stays, since an option of None would not override the file.
    return text if text == "auto" else size(text)
