"""Draws docs/deploy/top.svg: `streamer top` beside a service at work. Every figure is of that run.

    python docs/deploy/screenshot.py

Starts a service over local files, reads two epochs through it, and draws the picture of the last second. Ends with an
error if a figure of the picture is not what /metrics said at the same moment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import numpy as np
from rich.console import Console

from streamer.cli.picture import Picture
from streamer.cli.top_command import render
from streamer.client.engine_client import EngineClient
from streamer.client.settings import ClientSettings

ROOT = Path(__file__).parents[2]
HTTP = "127.0.0.1:9465"
PAUSE_STEP = 450
# Statistic in the picture: the metric that must agree with it.
SAME = {
    "store_bytes": "streamer_store_received_bytes_total",
    "hit_bytes": "streamer_cache_hit_bytes_total",
    "kept_bytes": "streamer_cache_kept_bytes",
    "limit_bytes": "streamer_cache_limit_bytes",
    "hedges": "streamer_store_hedges_total",
    "needs": "streamer_cache_needs_total",
}


def metrics() -> dict[str, float]:
    """Those without labels."""
    with urllib.request.urlopen(f"http://{HTTP}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return {line.split(" ")[0]: float(line.split(" ")[1]) for line in lines if line[0] != "#" and "{" not in line}


def configure(folder: Path) -> Path:
    """Files, and a service that keeps half of them."""
    random = np.random.default_rng(5)
    for number in range(800):
        path = folder / "train" / f"{number % 4}" / f"{number:04}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.bytes(100_000))
    config = folder / "streamer.toml"
    config.write_text(
        f"[cache]\ndirectory = '{folder}/cache'\nlimit_bytes = '45MB'\n[engine]\nsocket_path = '{folder}/s'\n"
        f"[service]\nhttp = '{HTTP}'\n[[datasets]]\nurl = '{folder}/train/'\n"
    )
    return config


def at_rest(client: EngineClient) -> tuple[dict[str, object], dict[str, float]]:
    """Statistics and metrics of one moment: looked at around each other until nothing moved in between."""
    for _ in range(200):
        now, told, after = client.statistics(), metrics(), client.statistics()
        if all(now[name] == after[name] for name in SAME):
            return now, told
    raise SystemExit("the engine never came to rest")


def draw(folder: Path) -> None:
    """Looks twice, a second of work apart, and compares the second look with /metrics."""
    task = {"url": f"{folder}/train/", "epochs": 2, "consumer": "rank 0", "pause_at": PAUSE_STEP}
    trainer = subprocess.Popen(
        [sys.executable, str(ROOT / "tests" / "e2e" / "read_all.py"), json.dumps(task)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={
            **os.environ,
            "STREAMER_ENGINE": f"unix:{folder}/s",
            "STREAMER_CACHE_DIR": f"{folder}/cache",
            "STREAMER_JOB": "train",
        },
    )
    settings = ClientSettings(cache_dir=folder / "cache", runtime_dir=folder, engine=f"unix:{folder}/s")
    with EngineClient(settings) as client:
        before = client.statistics()
        trainer.stdout.readline()
        now, told = at_rest(client)
    trainer.communicate(b"\n", timeout=60)
    for name, metric in SAME.items():
        if now[name] != told[metric]:
            raise SystemExit(f"{name}={now[name]}, but {metric}={told[metric]}")
    console = Console(record=True, width=100, file=open(os.devnull, "w"))  # noqa: SIM115 - lives as long as the script
    console.print(render(Picture(now, before)))
    console.save_svg(str(Path(__file__).with_name("top.svg")), title="streamer top")


def main() -> None:
    """Starts the service, draws, ends it."""
    with tempfile.TemporaryDirectory(prefix="top-") as name:
        folder = Path(name)
        service = subprocess.Popen(
            [sys.executable, "-m", "streamer", "serve", "--config", str(configure(folder))], stdout=subprocess.PIPE
        )
        service.stdout.readline()
        try:
            draw(folder)
        finally:
            service.terminate()
            service.wait(30)


if __name__ == "__main__":
    main()
