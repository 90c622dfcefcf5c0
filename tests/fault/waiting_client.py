"""Asks a service for its statistics again and again, until standard input ends; then prints the longest wait.

A process of its own: a thread of the test would wait for the service's Python, too.
"""

from __future__ import annotations

import select
import sys
import time
from pathlib import Path

from streamer.client.engine_client import EngineClient
from streamer.client.settings import ClientSettings


def main(root: Path) -> None:
    """Asks the service in this folder."""
    settings = ClientSettings(
        cache_dir=root / "cache", runtime_dir=root, engine=f"unix:{root / 'engine.sock'}", connect_seconds=60
    )
    with EngineClient(settings) as client:
        client.statistics()
        print("ready", flush=True)
        worst = 0.0
        while not select.select([sys.stdin], [], [], 0.02)[0]:
            begun = time.monotonic()
            client.statistics()
            worst = max(worst, time.monotonic() - begun)
    print(worst, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
