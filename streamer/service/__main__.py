"""`python -m streamer.service`: the embedded engine as a client starts it; configuration as JSON on stdin."""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import sys
from pathlib import Path

from streamer.config import CacheConfig, EngineConfig
from streamer.errors import BrokenError, ConfigError, StreamerError
from streamer.service.phases import Phases


def main() -> int:
    """Detaches, runs the engine, and reports on `--ready-fd` that it listens or why it does not."""
    phases = Phases.of_process()
    phases.end("interpreter")
    parser = argparse.ArgumentParser(prog="streamer.service", description=__doc__)
    parser.add_argument("--embedded", action="store_true", required=True)
    parser.add_argument("--ready-fd", type=int, required=True)
    ready_fd = parser.parse_args().ready_fd
    if os.fork():
        # The starter waits for this half; the engine is nobody's child, so it never becomes a zombie of a trainer.
        os._exit(0)
    # The imports make 60,000 objects and hardly any garbage; `collect_rarely` switches it on again.
    gc.disable()
    try:
        _run(json.load(sys.stdin), ready_fd, phases)
    except StreamerError as error:
        _report(ready_fd, {"kind": type(error).__name__, "message": str(error), "details": error.details})
        return 1
    except BaseException as error:
        _report(ready_fd, {"kind": BrokenError.__name__, "message": f"the engine failed to start: {error!r}"})
        raise
    logging.shutdown()
    # obstore's threads can abort an interpreter that takes itself apart (1 of 25 ends); everything is closed by now.
    os._exit(0)


def _run(settings: object, ready_fd: int, phases: Phases) -> None:
    import uvloop

    from streamer.service.lifecycle import run

    phases.end("imports")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s")
    config = _configuration(settings)
    uvloop.run(run(config, lambda: _report(ready_fd, {"ready": True}), phases=phases))


def _configuration(settings: object) -> EngineConfig:
    if not isinstance(settings, dict):
        raise ConfigError("the configuration on stdin is no mapping", field="stdin")
    cache = CacheConfig(
        directory=Path(settings["cache_dir"]),
        limit_bytes=settings.get("cache_bytes"),
        eviction=settings.get("eviction", "hold"),
    )
    return EngineConfig(
        cache=cache, socket_path=Path(settings["socket"]), grace_seconds=settings.get("grace_seconds", 3.0)
    )


def _report(descriptor: int, line: dict[str, object]) -> None:
    try:
        os.write(descriptor, json.dumps(line).encode() + b"\n")
    except OSError:
        return  # reported before, or the starter is gone: the log has it
    os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main())
