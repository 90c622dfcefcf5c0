"""`streamer serve`."""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from streamer.cli.exits import Exit
from streamer.cli.options import add_cache_dir, size, size_or_auto
from streamer.cli.terminal import Terminal
from streamer.config import CacheConfig, EngineConfig, Environment, FetchConfig

if TYPE_CHECKING:
    from collections.abc import Callable

HELP = "run the engine as a service"

DESCRIPTION = """\
Runs the engine in the foreground, as a service for all jobs of this machine or as the sidecar of a pod. Trainers need
one setting, STREAMER_ENGINE, and, where they see the cache folder at another path, STREAMER_CACHE_DIR. The service
stays until SIGTERM or Ctrl-C. One engine per cache folder.
"""

EXAMPLES = """\
examples:
  streamer serve --cache-dir /nvme/streamer --cache-bytes 200GB --socket /run/streamer/engine.sock
  STREAMER_ENGINE=unix:/run/streamer/engine.sock torchrun --nproc-per-node 8 train.py
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument(
        "--cache-bytes",
        type=size_or_auto,
        metavar="SIZE",
        help="hard limit of the cache (default: 80%% of what is free)",
    )
    parser.add_argument(
        "--memory-bytes",
        type=size,
        metavar="SIZE",
        help="buffers for bytes on their way (default: a quarter, up to 1GiB)",
    )
    parser.add_argument(
        "--socket", type=Path, metavar="PATH", help="where to listen (default: engine.sock in the runtime folder)"
    )
    parser.add_argument(
        "--eviction", choices=("hold", "epoch-lru", "lru"), default="hold", help="what stays (default: hold)"
    )
    add_cache_dir(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Serves until a signal ends it."""
    config = configuration(arguments, Environment.read())
    if not arguments.debug and Environment.read().log_level is None:
        logging.getLogger().setLevel(logging.INFO)
    _serve(config, lambda: terminal.line(f"listening: STREAMER_ENGINE=unix:{config.socket_path}"))
    return Exit.DONE


def configuration(arguments: argparse.Namespace, environment: Environment) -> EngineConfig:
    """The engine's configuration from the command line and the environment."""
    directory = arguments.cache_dir or environment.cache_dir
    socket = arguments.socket or environment.runtime_dir / "engine.sock"
    return EngineConfig(
        cache=CacheConfig(
            directory=Path(os.path.abspath(directory)), limit_bytes=arguments.cache_bytes, eviction=arguments.eviction
        ),
        fetch=FetchConfig(memory_bytes=arguments.memory_bytes),
        socket_path=Path(os.path.abspath(socket)),
        grace_seconds=None,
    )


def _serve(config: EngineConfig, listening: Callable[[], None]) -> None:
    import uvloop

    from streamer.service.lifecycle import run as run_engine

    uvloop.run(run_engine(config, listening))
