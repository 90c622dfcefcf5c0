"""A trainer without torch: reads every sample of a dataset through an engine, as often as asked. Run as a program.

    STREAMER_ENGINE=unix:... python read_all.py '{"url": ..., "epochs": 1, "pause_at": step}'

Needs no option but what the environment says. Prints one JSON line when it pauses (and goes on at a line on stdin) and
one at the end: {"digest": of all samples of each epoch, "samples": n, "engines": pids it spoke to}.
"""

from __future__ import annotations

import hashlib
import json
import sys

import numpy as np

from streamer.client.chunk_reader import ChunkReader, WantedSample
from streamer.client.engine_client import EngineClient
from streamer.client.settings import ClientSettings
from streamer.manifest.table import Manifest
from streamer.wire.messages import GetManifest, OpenSession
from streamer.wire.schedule import EpochSchedule

STEPS_AHEAD = 4


def samples_of(reader: ChunkReader, manifest: Manifest, chunk: int) -> list[bytes]:
    """Returns the samples of a chunk, checked."""
    offsets = manifest.sample_offsets(chunk)
    wanted = [WantedSample(i, int(offsets[i]), int(offsets[i + 1])) for i in range(len(offsets) - 1)]
    key = manifest.chunk_keys[chunk].tobytes()
    found = reader.read(key, int(manifest.chunk_local_bytes[chunk]), int(manifest.chunk_samples[chunk]), wanted)
    return [bytes(view) for view in found]


def main() -> None:
    task = json.loads(sys.argv[1])
    with EngineClient(ClientSettings.from_environment()) as client:
        manifest = Manifest.open(client.manifest(GetManifest(0, [task["url"]], "auto")))
        session = client.open_session(
            OpenSession(0, "", dataset=manifest.digest, consumer=task.get("consumer", "rank 0"))
        )
        reader, engines, digests, count = ChunkReader(client.roots()), [], [], 0
        for epoch in range(task["epochs"]):
            steps = np.arange(manifest.chunks, dtype=np.int64) + epoch * manifest.chunks
            session.extend(EpochSchedule(epoch, np.arange(manifest.chunks, dtype=np.uint32), steps, steps))
            digest = hashlib.blake2b(digest_size=16)
            for chunk, step in enumerate(steps.tolist()):
                session.want(min(step + STEPS_AHEAD, int(steps[-1])))
                session.wait(step, 60)
                for sample in samples_of(reader, manifest, chunk):
                    digest.update(sample)
                    count += 1
                session.done(step + 1)
                if client._connect().welcome.pid not in engines:
                    engines.append(client._connect().welcome.pid)
                if step == task.get("pause_at"):
                    print(json.dumps({"paused": step}), flush=True)
                    sys.stdin.readline()
            digests.append(digest.hexdigest())
    print(json.dumps({"digests": digests, "samples": count, "engines": engines}), flush=True)


if __name__ == "__main__":
    main()
