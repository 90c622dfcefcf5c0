"""Packs, indexes and counts on a local Ray cluster, of which a worker is killed first: `on_ray.py SOURCE FOLDER`.

Writes result.json: the digests of what Ray packed and of an index of it on Ray, how many workers were killed, and the
bytes of samples as processes and Ray count them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import ray

import streamer
from streamer.cli.main import main
from streamer.executors.on_ray import RayExecutor


def ray_workers() -> list[int]:
    """Returns the processes of Ray that run a task."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            name = path.read_bytes()
        except OSError:
            continue
        if name.startswith(b"ray::_call"):
            found.append(int(path.parent.name))
    return found


def end_a_worker(folder: Path, ended: list[int]) -> None:
    """Kills a worker that writes, once the first shard is there."""
    while not ended:
        if list(folder.glob("*.tar")) and (running := ray_workers()):
            os.kill(running[0], signal.SIGKILL)
            ended.append(running[0])
        time.sleep(0.002)


def run(source: Path, folder: Path) -> dict[str, object]:
    """Packs, indexes and counts; returns what result.json has."""
    here = streamer.pack(source, folder / "here", shard_bytes="50kB", executor="processes:2")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    executor = RayExecutor()
    slept = executor.submit(time.sleep, 0.5)
    executor.shutdown()
    assert slept.done(), "shutdown() returned before the call that it waits for"
    ended: list[int] = []
    thread = threading.Thread(target=end_a_worker, args=(folder / "there", ended))
    thread.start()
    there = streamer.pack(source, folder / "there", shard_bytes="50kB", executor="ray:auto")
    thread.join()
    assert main(["index", f"{folder}/there/", "--out", f"{folder}/manifest", "--executor", "ray:auto"]) == 0
    root = json.loads((folder / "manifest/root.json").read_text())
    counted = []
    for on in ("processes:2", "ray:auto"):
        dataset = streamer.StreamingDataset(folder / "there", manifest=folder / "manifest", cache_dir=folder / "cache")
        costs = streamer.measure_lengths(
            dataset, lambda sample: len(sample["bin"]), path=folder / "costs.npy", executor=on
        )
        counted.append(costs.tolist())
        dataset.close()
    connected = ray.is_initialized()
    ray.shutdown()
    return {
        "samples": [here.samples, there.samples],
        "packed": there.digest,
        "indexed": root["digest"],
        "killed": len(ended),
        "connected": connected,
        "counted": counted,
    }


if __name__ == "__main__":
    result = run(Path(sys.argv[1]), Path(sys.argv[2]))
    Path(sys.argv[2], "result.json").write_text(json.dumps(result))
