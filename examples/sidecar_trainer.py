"""Two ranks that train through a sidecar: no credentials, no cache of their own, one variable.

    STREAMER_ENGINE=unix:/run/streamer/engine.sock torchrun --standalone --nproc-per-node 2 sidecar_trainer.py \
        --url s3://train/data/ --epochs 2

Prints one JSON line per rank and epoch: how many samples, and a digest of them that does not depend on their order, so
that the ranks' digests, combined by xor, can be compared with the bucket's. --fill ENDPOINT makes the bucket.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import time
from collections.abc import Mapping, Sequence

SAMPLES = 400
SAMPLE_BYTES = 100_000


def fingerprint(key: str, content: bytes) -> int:
    """64 bits of one sample."""
    return int.from_bytes(hashlib.blake2b(key.encode() + b"\0" + content, digest_size=8).digest(), "big")


def to_pair(sample: Mapping[str, object]) -> tuple[str, int]:
    """What a worker hands over: key and fingerprint."""
    key = str(sample["__key__"])
    return key, fingerprint(key, bytes(sample["bin"]))


def as_they_are(samples: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """No tensors here."""
    return list(samples)


def train(url: str, epochs: int, step_seconds: float) -> None:
    """Reads epochs; a real script would compute in between."""
    from streamer import StreamingDataLoader, StreamingDataset

    rank = int(os.environ.get("RANK", "0"))
    dataset = StreamingDataset(url, decode=None, transform=to_pair, seed=17)
    with StreamingDataLoader(dataset, batch_size=10, num_workers=2, collate_fn=as_they_are) as loader:
        for epoch in range(epochs):
            combined = count = 0
            for batch in loader:
                for (_, digest), repeated in zip(batch, loader.repeated.tolist(), strict=True):
                    combined ^= 0 if repeated else digest
                    count += not repeated
                time.sleep(step_seconds)
            print(
                json.dumps({"rank": rank, "epoch": epoch, "samples": count, "digest": f"{combined:016x}"}), flush=True
            )


def contents() -> list[tuple[str, bytes]]:
    """The bucket: class folders of random bytes, the same every time."""
    source = random.Random(5)
    return [(f"{number % 4}/{number:05}.bin", source.randbytes(SAMPLE_BYTES)) for number in range(SAMPLES)]


def fill(endpoint: str, bucket: str = "train", prefix: str = "data/") -> None:
    """Uploads the bucket with the standard library's means: the server asks for no real signature."""
    import urllib.request

    headers = {"Authorization": "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, SignedHeaders=, "}
    headers["Content-Type"] = "application/octet-stream"  # or the form that urllib says it is would be parsed
    for path, content in [("", b""), *((prefix + name, content) for name, content in contents())]:
        request = urllib.request.Request(f"{endpoint}/{bucket}/{path}", content, headers, method="PUT")
        urllib.request.urlopen(request, timeout=30).close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="s3://train/data/")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--step-seconds", type=float, default=0.05, help="what a step would compute")
    parser.add_argument("--fill", metavar="ENDPOINT", help="make the bucket, then end")
    arguments = parser.parse_args()
    if arguments.fill:
        fill(arguments.fill)
    else:
        train(arguments.url, arguments.epochs, arguments.step_seconds)


if __name__ == "__main__":
    main()
