"""Two epochs of JPEGs through DALI's CPU pipeline: from `DaliSource`, and from DALI's own reader of files.

    python dali_epochs.py FOLDER

Prints, for each epoch, how many images there were, how many different ones, and how many equal those of DALI's reader.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from nvidia.dali import fn, pipeline_def, types

from streamer import StreamingDataLoader, StreamingDataset
from streamer.loader.device.dali import DaliSource

BATCH, EDGE = 16, 64


def decoded(jpegs: object) -> object:
    return fn.resize(fn.decoders.image(jpegs, device="cpu", output_type=types.RGB), size=[EDGE, EDGE])


@pipeline_def(batch_size=BATCH, num_threads=1, device_id=None)
def by_dali(files: list[str]) -> object:
    jpegs, numbers = fn.readers.file(files=files, labels=list(range(len(files))))
    return decoded(jpegs), numbers


@pipeline_def(batch_size=BATCH, num_threads=1, device_id=None)
def by_streamer(source: DaliSource) -> object:
    jpegs, numbers = fn.external_source(source=source, num_outputs=2, no_copy=True, cycle="raise")
    return decoded(jpegs), numbers


def number(sample: dict[str, object]) -> dict[str, object]:
    return {"jpg": sample["jpg"], "number": int(str(sample["__key__"]).removesuffix(".jpg"))}


def main() -> None:
    files = sorted(map(str, Path(sys.argv[1]).glob("*.jpg")))
    pipeline, wanted = by_dali(files), {}
    while len(wanted) < len(files):
        images, numbers = pipeline.run()
        wanted |= dict(zip(np.array(numbers.as_array()).ravel().tolist(), np.array(images.as_array()), strict=True))
    with tempfile.TemporaryDirectory() as cache:
        dataset = StreamingDataset(sys.argv[1], decode=None, transform=number, cache_dir=cache)
        with StreamingDataLoader(dataset, batch_size=BATCH, num_workers=1, ragged=("jpg",)) as loader:
            pipeline = by_streamer(DaliSource(loader, ("jpg", "number")))
            for _ in range(2):
                seen: list[int] = []
                equal = 0
                while True:
                    try:
                        images, numbers = pipeline.run()
                    except StopIteration:
                        pipeline.reset()
                        break
                    for image, one in zip(images, np.array(numbers.as_array()).ravel().tolist(), strict=True):
                        seen.append(one)
                        equal += int(np.array_equal(np.array(image), wanted[one]))
                print(len(seen), len(set(seen)), equal)
            del pipeline
        dataset.close()


if __name__ == "__main__":
    main()
