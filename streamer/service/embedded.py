"""Runs an engine that a client starts for itself, and tells the client when it listens or why it does not.

`service/__main__.py` calls `serve`. `service/inline.py` uses `configuration` alone.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from streamer.base.logs import configure
from streamer.config import CacheConfig, EngineConfig, Environment
from streamer.errors import BrokenError, ConfigError, StreamerError
from streamer.service.startup_timing import StartupTiming


def serve(ready_fd: int, timing: StartupTiming) -> int:
    """Reads settings as JSON from stdin, and runs an engine until its last client has left.

    It writes one line of JSON: {"ready": true} when clients can connect, or else the kind and message of the error, and
    the details of a StreamerError.

    Args:
        ready_fd: descriptor for that line; it is closed afterwards.
        timing: timing of the start, in which the interpreter's phase is finished.

    Returns:
        The exit status 1 if a StreamerError ended the engine. The process ends here if the engine ran to its end.

    Raises:
        BaseException: any other error, after it was reported.
    """
    report = StartReport(ready_fd)
    try:
        settings = json.load(sys.stdin)
        import uvloop

        from streamer.service.lifecycle import EngineService

        timing.end("imports")
        configure(logging.INFO, "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s", Environment.read())
        config = configuration(settings, Environment.read())
        uvloop.run(EngineService(config, lambda: report.write({"ready": True}), timing=timing).run())
    except StreamerError as error:
        report.write({"kind": type(error).__name__, "message": str(error), "details": error.details})
        return 1
    except ImportError as error:
        text = f"the engine cannot start with {sys.executable}, which lacks {error.name or 'a module'} ({error})"
        report.write({"kind": ConfigError.__name__, "message": text})
        raise
    except PermissionError as error:
        text = (
            f"the engine cannot start: the system refuses a call ({error}); allow it (seccomp profile, "
            "SystemCallFilter=: epoll, eventfd, sockets), or correct the file's permissions"
        )
        report.write({"kind": ConfigError.__name__, "message": text})
        raise
    except BaseException as error:
        report.write({"kind": BrokenError.__name__, "message": f"the engine failed to start: {error!r}"})
        raise
    logging.shutdown()
    # obstore's threads can abort an interpreter that is shutting down (1 of 25 ends); everything is closed by now.
    os._exit(0)


def configuration(settings: object, environment: Environment) -> EngineConfig:
    """Returns the configuration of an engine that a client starts for itself.

    Args:
        settings: mapping with `cache_dir` and `socket`, and perhaps `cache_bytes`, `grace_seconds` and `config`, the
            path of a TOML file.
        environment: environment of the client.

    Raises:
        ConfigError: the settings are not a mapping, or a setting of the file or the environment is invalid.
    """
    if not isinstance(settings, Mapping):
        raise ConfigError("the configuration of the engine is not a mapping", field="stdin")
    cache = CacheConfig(directory=Path(settings["cache_dir"]), limit_bytes=settings.get("cache_bytes"))
    config = EngineConfig(
        cache=cache, socket_path=Path(settings["socket"]), grace_seconds=settings.get("grace_seconds", 3.0)
    )
    variables = environment.engine_settings()
    if not settings.get("config") and not variables:
        return config
    from streamer.service.configuration import read_trainer_config  # Here, because it would slow down each start.

    return read_trainer_config(Path(settings["config"]) if settings.get("config") else None, variables, config)


class StartReport:
    """Tells the client once, by a line of JSON, that the engine listens or why it does not.

    Args:
        descriptor: where the line is written; it is closed then, and its number may mean another file from then on.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def write(self, line: Mapping[str, object]) -> None:
        """Writes the line and closes the descriptor; a second call does nothing, and an absent reader is no error."""
        if self._descriptor is None:
            return
        descriptor = self._descriptor
        self._descriptor = None
        with suppress(OSError):  # the client is gone
            os.write(descriptor, json.dumps(line).encode() + b"\n")
        os.close(descriptor)
