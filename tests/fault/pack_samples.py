"""A program that packs what it makes, for tests that kill it: `python pack_samples.py URL SAMPLES OPTIONS`."""

from __future__ import annotations

import json
import random
import sys

import streamer

if __name__ == "__main__":
    url, samples, options = sys.argv[1:]
    numbers = random.Random(1)
    made = ({"bin": numbers.randbytes(numbers.randrange(1, 400)), "label": i % 10} for i in range(int(samples)))
    print(streamer.pack(made, url, shard_bytes="80kB", out_storage_options=json.loads(options)).digest)
