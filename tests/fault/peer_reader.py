"""A trainer without torch that checks every byte it reads: `peer_reader.py SOCKET URL JOB CONSUMER`.

Each line of stdin is one epoch, a JSON mapping: {"seed": of the order, "share": [rank, ranks], "pause": seconds after
each chunk}. Each answer is one: {"samples": that were right, "seconds", "longest": that a chunk was waited for}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from streamer.client.chunk_reader import ChunkReader, WantedSample
from streamer.client.engine_client import EngineClient
from streamer.client.session import Session
from streamer.client.settings import ClientSettings
from streamer.manifest.table import Manifest
from streamer.wire.messages import GetManifest, OpenSession
from streamer.wire.schedule import EpochSchedule

SAMPLE_BYTES = 64 << 10
STEPS_AHEAD = 16


def sample(number: int) -> bytes:
    """The bytes of the object of this number."""
    word = number.to_bytes(8, "little") * 2
    return word * (SAMPLE_BYTES // len(word))


def read_epoch(session: Session, reader: ChunkReader, manifest: Manifest, epoch: int, task: dict) -> dict:
    """One epoch; raises when a byte is wrong."""
    rank, ranks = task.get("share", [0, 1])
    order = np.array_split(np.random.default_rng(task["seed"]).permutation(manifest.chunks), ranks)[rank]
    steps = np.arange(len(order), dtype=np.int64) + reader_steps[0]
    reader_steps[0] += len(order)
    session.extend(EpochSchedule(epoch, order.astype(np.uint32), steps, steps))
    begun, longest, right = time.monotonic(), 0.0, 0
    for step, chunk in zip(steps.tolist(), order.tolist(), strict=True):
        asked = time.monotonic()
        session.want(min(step + STEPS_AHEAD, int(steps[-1])))
        session.wait(step, 120)
        longest = max(longest, time.monotonic() - asked)
        offsets = manifest.sample_offsets(chunk)
        wanted = [WantedSample(i, int(offsets[i]), int(offsets[i + 1])) for i in range(len(offsets) - 1)]
        lengths = int(manifest.chunk_local_bytes[chunk]), int(manifest.chunk_samples[chunk])
        first = int(manifest.chunk_first[chunk])
        for place, found in enumerate(reader.read(manifest.chunk_keys[chunk].tobytes(), *lengths, wanted)):
            number = int(manifest.name(first + place).object_key.rsplit("/", 1)[-1].split(".")[0])
            assert bytes(found) == sample(number), f"sample {number} of chunk {chunk} is wrong"
            right += 1
        session.done(step + 1)
        if task.get("pause"):
            time.sleep(task["pause"])
    return {"samples": right, "seconds": time.monotonic() - begun, "longest": longest}


reader_steps = [0]


def main() -> None:
    """Until stdin ends."""
    socket, url, job, consumer = sys.argv[1:5]
    options = json.loads(os.environ["STORAGE_OPTIONS"])
    places = {"cache_dir": Path(socket).parent, "runtime_dir": Path(socket).parent}
    settings = ClientSettings(**places, engine=f"unix:{socket}", job=job, storage_options=options)
    with EngineClient(settings) as client:
        request = GetManifest(0, [url], "folder", json.dumps(options).encode(), chunk_bytes=SAMPLE_BYTES)
        manifest = Manifest.open(client.manifest(request))
        session = client.open_session(OpenSession(0, "", dataset=manifest.digest, consumer=consumer))
        reader = ChunkReader(client.roots())
        print(json.dumps({"chunks": manifest.chunks, "bytes": int(manifest.chunk_local_bytes.sum())}), flush=True)
        for epoch, line in enumerate(sys.stdin):
            print(json.dumps(read_epoch(session, reader, manifest, epoch, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
