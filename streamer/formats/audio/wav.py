"""WAV and RF64: numbers behind a head, so that the place of every sample is computed. No I/O.

Source: RIFF (Microsoft, 1991), WAVEFORMATEXTENSIBLE, EBU Tech 3306 (RF64).
"""

from __future__ import annotations

from struct import Struct

from streamer.formats.audio.recordings import Recording
from streamer.formats.audio.sounds import PCM, Integers
from streamer.formats.failures import damaged, refused
from streamer.formats.media.entries import Codec
from streamer.formats.reading import Reading, read_range
from streamer.manifest.model import ObjectRecord

_READ_BYTES = 4096
_FORM = Struct("<HHIIHH")
_DTYPES = {(1, 8): "u1", (1, 16): "<i2", (1, 24): "i3", (1, 32): "<i4", (3, 32): "<f4", (3, 64): "<f8"}
_PLAIN, _EXTENSIBLE = 16, 0xFFFE
# Writers that cannot seek leave the second in place of lengths, and so does RF64; recorders that were killed leave the
# first. FFmpeg and libsndfile read to the end of the file, too.
_UNKNOWN = (0, 0xFFFFFFFF)


class Wav(Recording, frozen=True):
    """A file of numbers.

    Attributes:
        start: byte at which the first one begins.
        width: bytes of a sample of all channels.
    """

    start: int
    width: int

    def bounds(self, starts: Integers, stops: Integers) -> tuple[Integers, Integers]:
        """The bytes of samples."""
        return self.start + starts * self.width, self.start + stops * self.width

    def sample_at(self, byte: int) -> int:
        """The number of the sample at a byte."""
        return (byte - self.start) // self.width


def is_wav(head: memoryview) -> bool:
    """Whether a file begins as these do."""
    return bytes(head[:4]) in {b"RIFF", b"RF64"} and bytes(head[8:12]) == b"WAVE"


def read_wav(record: ObjectRecord, head: memoryview) -> Reading[Wav]:
    """Walks over the chunks of a file up to its numbers, which begin in the first bytes; raises ManifestError."""
    at, long, base = 12, 0, 0
    form: tuple[Codec, int] | None = None
    while at + 8 <= record.size:
        if at + 8 + _FORM.size + 24 > base + len(head):
            base, head = at, (yield from read_range(at, min(record.size, at + _READ_BYTES), record))
        chunk = head[at - base :]
        kind, length = bytes(chunk[:4]), int.from_bytes(chunk[4:8], "little")
        if kind == b"ds64":
            long = int.from_bytes(chunk[16:24], "little")
        elif kind == b"fmt ":
            form = _form(record, chunk[8 : 8 + length], at)
        elif kind == b"data":
            if form is None:
                raise damaged(record, "it has no fmt chunk before its samples", at)
            sound, width = form
            length = (long or record.size) if length in _UNKNOWN else length
            return Wav(sound, min(length, record.size - at - 8) // width, at + 8, width)
        at += 8 + length + (length & 1)
    raise damaged(record, "it is cut off before its samples (a data chunk)", min(at, record.size))


def _form(record: ObjectRecord, content: memoryview, at: int) -> tuple[Codec, int]:
    if len(content) < _FORM.size:
        raise damaged(record, f"its fmt chunk has {len(content)} bytes", at)
    tag, channels, rate, _, width, bits = _FORM.unpack_from(content)
    if tag == _EXTENSIBLE and len(content) >= 26:
        tag = int.from_bytes(content[24:26], "little")
    dtype = _DTYPES.get((tag, bits))
    if dtype is None:
        raise refused(
            record,
            f"is WAV of tag {tag} with {bits} bits a sample; windows are cut out of PCM of 8, 16, 24 and 32 bits and "
            "of floats of 32 and 64, others are decoded as whole files (AudioClip)",
            at,
            of_one=True,
        )
    if not channels or not rate or width * 8 != channels * bits:
        raise damaged(record, f"its fmt chunk says {channels} channels, {rate} Hz, {width} bytes a sample", at)
    return Codec(PCM, dtype.encode(), rate=rate, channels=channels), width


def width_of(sound: Codec) -> int:
    """Bytes of a sample of all channels."""
    return int(chr(sound.extradata[-1])) * sound.channels
