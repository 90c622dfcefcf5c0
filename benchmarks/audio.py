"""CPU of windows of sound: the index of a file, the records of its windows, and decoding one.

    python benchmarks/audio.py [--minutes 5] [--keep]

Files of tones and noise, which PyAV encodes; windows of 10 seconds follow each other. The least of five runs in this
process, from memory. Packets are frames of FLAC and MP3, packets of Opus and AAC. Bounds: for recoding 1.5 s/GB or 6 us
a packet, whichever is more; of what is read for the index of FLAC 1 % of the file. Results are kept in
benchmarks/results/.
"""

from __future__ import annotations

import argparse
from typing import Any, cast

import av
import msgspec
from bounds import Bounds, least_cpu
from report import kept

from streamer.formats.base import Facts
from streamer.media.audio.format import Audio
from streamer.media.audio.index import BlockNote
from streamer.media.audio.recode import units_of
from streamer.media.decode.audio import WindowAudio
from tests.formats.cases import block_bytes, contents_of, find, run
from tests.recordings import encoded, sound

# Encoder, container, rate, channels, bits a second.
KINDS = {
    "flac": ("flac", "flac", 44_100, 2, 0),
    "flac, speech": ("flac", "flac", 16_000, 1, 0),
    "mp3": ("libmp3lame", "mp3", 44_100, 2, 128_000),
    "opus": ("libopus", "ogg", 48_000, 2, 96_000),
    "opus, speech": ("libopus", "ogg", 48_000, 1, 24_000),
    "aac in m4a": ("aac", "ipod", 48_000, 2, 128_000),
}
CHOSEN, RUNS = Audio(seconds=10.0), 5
RECODING, PACKET, READ = 1.5e-9, 6e-6, 0.01


def measure(kind: str, minutes: float, bounds: Bounds) -> None:
    """Prints the figures of one kind of file."""
    codec, container, rate, channels, bits = KINDS[kind]
    content = encoded(
        codec, container, sound(60 * minutes, channels, rate), rate, **({"bit_rate": bits} if bits else {})
    )
    objects = {"0.wav": content}
    found = find(CHOSEN, objects)
    ((source, blocks),) = found.items
    index = least_cpu(lambda: run(CHOSEN.index(source, Facts()), objects, source.record, [], lambda item: None), RUNS)
    read = sum(need.stop - need.start for asked in found.needs[source.record.url] for need in asked)
    pieces = [(block, memoryview(block_bytes(block, content))) for block in blocks]
    recoder = CHOSEN.recoder(Facts())
    recoding = least_cpu(lambda: [recoder.recode(piece, block.samples, block.hint) for block, piece in pieces], RUNS)
    notes = [msgspec.msgpack.decode(block.hint, type=BlockNote) for block in blocks]
    packets = sum(len(cast(Any, units_of(piece, note)).sizes) for (_, piece), note in zip(pieces, notes, strict=True))
    records = [memoryview(record) for record, _ in contents_of(CHOSEN, found, objects)]
    decoding = least_cpu(lambda: [WindowAudio().decode(record) for record in records], RUNS) / len(records)
    size, hints = len(content), sum(len(block.hint) for block in blocks)
    figures = (size / 1e6, packets, index / size * 1e9, read / size, hints / packets)
    figures += recoding / size * 1e9, recoding / packets * 1e6, decoding * 1e3
    print(f"{kind:12}", *(f"{figure:10.4g}" for figure in figures))
    bounds.add(f"recoding {kind}, of its bound", recoding / max(RECODING * size, PACKET * packets), 1)
    if container == "flac" and len(blocks) > 1:
        bounds.add(f"read for the index of {kind}, of the file", read / size, READ)


def main() -> None:
    """Measures all kinds."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--minutes", type=float, default=5, help="of sound in a file")
    arguments.add_argument("--keep", action="store_true", help="keep the result")
    given = arguments.parse_args()
    bounds = Bounds()
    with kept("audio", f"av {av.__version__}", f"files of {given.minutes:g} minutes", keep=given.keep):
        print("MB, packets, index s/GB, part read, hint bytes/packet, recoding s/GB and us/packet, decoding ms/window")
        for kind in KINDS:
            measure(kind, given.minutes, bounds)
        bounds.report()


if __name__ == "__main__":
    main()
