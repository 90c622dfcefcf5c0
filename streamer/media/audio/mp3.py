"""Reads MP3: frames do not say which samples they have, so an index reads all bytes once and counts frames.

`index.py` reads files with it, and `tracks.py` MP3 in mp4. `read_mp3` asks for bytes by `yield` (`formats/reading.py`),
so there is no I/O here. A "sample" here is a value of each channel at one time.

Source: ISO/IEC 11172-3 (frames), 13818-3 (half rates), http://gabriel.mp3-tech.org/mp3infotag.html (LAME's tag).
"""

from __future__ import annotations

from functools import lru_cache

import msgspec
import numpy as np

from streamer.formats.failures import make_damage_error
from streamer.formats.reading import Reading, Window
from streamer.manifest.model import ObjectRecord
from streamer.media.audio.recordings import AudioFrames, Packeted
from streamer.media.containers.entries import TrackCodec

_RATES = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}
_KBITS = {
    3: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    2: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
# So many frames before a wanted one are decoded: it may use bits of nine (main_data_begin is at most 511 bytes).
LEAD_FRAMES = 10
# A decoder delays its output by so many samples, which LAME's tag does not count.
_DECODER_DELAY = 529
_LONGEST_FRAME = 2048


class Shape(msgspec.Struct, frozen=True):
    """The facts that the head of a frame tells.

    Attributes:
        version: 3 for MPEG-1, 2 for half and 0 for quarter rates.
        rate: samples a second.
        channels: 1 or 2.
        bytes: length of the frame, head included.
    """

    version: int
    rate: int
    channels: int
    bytes: int

    @property
    def samples(self) -> int:
        """Number of samples of a frame."""
        return 1152 if self.version == 3 else 576

    @property
    def side_bytes(self) -> int:
        """Bytes of side information after the head. In the first frame a tag may follow them in place of audio."""
        return (17 if self.version == 3 else 9) if self.channels == 1 else (32 if self.version == 3 else 17)


@lru_cache(maxsize=4096)
def shape_of(word: bytes) -> Shape | None:
    """Reads the four bytes of a head; returns None if they are no head of a frame of layer 3."""
    if len(word) < 4 or word[0] != 0xFF or word[1] & 0xE0 != 0xE0:
        return None
    version = word[1] >> 3 & 3
    layer = word[1] >> 1 & 3
    bits = word[2] >> 4
    rate = word[2] >> 2 & 3
    if version == 1 or layer != 1 or rate == 3 or bits in {0, 15}:
        return None
    hertz = _RATES[version][rate]
    kbits = _KBITS[3 if version == 3 else 2][bits]
    size = (144 if version == 3 else 72) * kbits * 1000 // hertz + (word[2] >> 1 & 1)
    return Shape(version, hertz, 1 if word[3] >> 6 == 3 else 2, size)


def is_mp3(head: memoryview) -> bool:
    """Returns whether a file that begins with `head` begins with an ID3 tag or with a frame."""
    return bytes(head[:3]) == b"ID3" or shape_of(bytes(head[:4])) is not None


def read_mp3(record: ObjectRecord) -> Reading[Packeted]:
    """Reads all bytes of a file, and returns all of its frames.

    The samples that LAME's tag says are padding at both ends are not played.

    Raises:
        ManifestError: there is no frame.
    """
    window = Window(record.size)
    at = 0
    offsets: list[int] = []
    sizes: list[int] = []
    start = b""
    while at < record.size:
        yield from window.reach(at, min(record.size, at + _LONGEST_FRAME))
        if not offsets and (tag := tag_bytes(window.take(at, min(record.size, at + 10)))):
            at += tag
            continue
        found, found_sizes, stop = scan(window.content[at - window.start :], last=window.stop == record.size)
        if found and not offsets:
            start = window.take(at + found[0], at + found[0] + found_sizes[0])
        offsets += [at + offset for offset in found]
        sizes += found_sizes
        at += stop
    if not offsets or (shape := shape_of(start[:4])) is None:
        raise make_damage_error(record, "it has no frame of MP3", 0)
    skip, padding, tagged = _info(start, shape, len(offsets))
    places = np.array(offsets[tagged:], np.int64)
    lengths = np.array(sizes[tagged:], np.int64)
    each = shape.samples
    firsts = each * np.arange(len(places) + 1, dtype=np.int64) - skip
    audio = TrackCodec("mp3float", rate=shape.rate, channels=shape.channels)
    return Packeted(audio, max(0, int(firsts[-1]) - padding), AudioFrames(places, lengths, firsts, LEAD_FRAMES * each))


def scan(content: memoryview, *, last: bool) -> tuple[list[int], list[int], int]:
    """Finds frames in bytes of a file; after bytes that are no frame, two heads must follow each other.

    Args:
        content: the bytes.
        last: whether they reach to the end of the file. Otherwise a frame that may be cut off is left out.

    Returns:
        Where the frames begin in `content`, their lengths in bytes, and where the bytes of the next call begin.
    """
    offsets: list[int] = []
    sizes: list[int] = []
    at = 0
    end = len(content)
    known = True
    while at + 4 <= end:
        shape = shape_of(bytes(content[at : at + 4]))
        if shape is not None and not known:
            # A head after bytes that are no frame counts only if another one follows its frame.
            following = at + shape.bytes
            known = following + 4 > end or shape_of(bytes(content[following : following + 4])) is not None
        if shape is None or not known:
            known = False
            if not last and at + _LONGEST_FRAME > end:
                return offsets, sizes, at
            at += 1
            continue
        if at + shape.bytes > end:
            return offsets, sizes, end if last else at
        offsets.append(at)
        sizes.append(shape.bytes)
        at += shape.bytes
    return offsets, sizes, end if last else at


def tag_bytes(start: bytes) -> int:
    """Returns the length of the ID3 tag with which a file begins, by its first 10 bytes; 0 if there is none."""
    if start[:3] != b"ID3" or len(start) < 10:
        return 0
    length = sum((byte & 0x7F) << shift for byte, shift in zip(start[6:10], (21, 14, 7, 0), strict=True))
    return 10 + length + (10 if start[5] & 16 else 0)


def _info(frame: bytes, shape: Shape, frames: int) -> tuple[int, int, int]:
    """Reads the tag of an encoder in the first frame.

    Returns:
        The number of samples not played at the beginning, that at the end, and how many frames are a tag and no audio
        (0 or 1).
    """
    if frame[36:40] == b"VBRI":
        return 0, 0, 1
    at = 4 + shape.side_bytes
    if frame[at : at + 4] not in {b"Xing", b"Info"}:
        return 0, 0, 0
    flags = int.from_bytes(frame[at + 4 : at + 8], "big")
    counted = int.from_bytes(frame[at + 8 : at + 12], "big")
    at += 8 + 4 * (flags & 1) + 4 * (flags >> 1 & 1) + 100 * (flags >> 2 & 1) + 4 * (flags >> 3 & 1)
    if frame[at : at + 4] not in {b"LAME", b"Lavf", b"Lavc"}:
        return 0, 0, 1
    packed = int.from_bytes(frame[at + 21 : at + 24], "big")
    padding = max(0, (packed & 0xFFF) - _DECODER_DELAY) if flags & 1 and counted == frames - 1 else 0
    return (packed >> 12) + _DECODER_DELAY, padding, 1
