"""Frames of videos as torchcodec decodes them, by time: a digest of each.

    python torchcodec_frames.py ASKED WRITTEN

ASKED is JSON: the path of a video to seconds; WRITTEN gets the path to a list of [seconds, digest], or to the error of
torchcodec for a video that it does not read.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import torchcodec
from torchcodec.decoders import VideoDecoder


def main() -> None:
    asked = json.loads(Path(sys.argv[1]).read_text())
    found: dict[str, object] = {"version": torchcodec.__version__}
    for path, seconds in asked.items():
        try:
            decoder = VideoDecoder(path, num_ffmpeg_threads=1)
            frames = decoder.get_frames_played_at(seconds)
        except (RuntimeError, ValueError) as error:
            found[path] = str(error)
            continue
        digests = [hashlib.blake2b(frame.numpy().tobytes(), digest_size=12).hexdigest() for frame in frames.data]
        found[path] = list(zip(frames.pts_seconds.tolist(), digests, strict=True))
    Path(sys.argv[2]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
