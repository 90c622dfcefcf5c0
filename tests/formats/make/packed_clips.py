"""Clips of tars as webdataset reads them and torchcodec decodes them.

    python packed_clips.py FOLDER WRITTEN

WRITTEN gets JSON: for each sample its source, its number of frames, and [seconds, digest] of the frames that are shown
in the middle of each frame of the clip.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from torchcodec.decoders import VideoDecoder
from webdataset import WebDataset


def main() -> None:
    found = []
    for sample in WebDataset(list(map(str, sorted(Path(sys.argv[1]).glob("*.tar")))), shardshuffle=False):
        told, decoder = json.loads(sample["json"]), VideoDecoder(sample["mp4"], num_ffmpeg_threads=1)
        begin = told["pts_seconds"][0]
        frames = decoder.get_frames_played_at(
            [pts - begin + 0.5 * d for pts, d in zip(told["pts_seconds"], told["duration_seconds"], strict=True)]
        )
        digests = [hashlib.blake2b(frame.numpy().tobytes(), digest_size=12).hexdigest() for frame in frames.data]
        shown = [begin + seconds for seconds in frames.pts_seconds.tolist()]
        found.append([told["source"]["path"], len(decoder), list(zip(shown, digests, strict=True))])
    Path(sys.argv[2]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
