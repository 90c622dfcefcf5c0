"""Reads the heads of WAV, RIFX, RF64 and BW64: PCM values follow a head, so the place of every sample is computed.

`index.py` reads files with it, and `recode.py` cuts windows. Functions that return a `Reading` ask for bytes by `yield`
(`formats/reading.py`), so there is no I/O here.

A "RIFF chunk" here is a part of such a file. A "sample" is a value of each channel at one time.

Source: RIFF (Microsoft, 1991), WAVEFORMATEXTENSIBLE, EBU Tech 3306 (RF64), ITU-R BS.2088 (BW64).
"""

from __future__ import annotations

from struct import Struct

from streamer.formats.failures import make_damage_error, make_refusal
from streamer.formats.reading import Reading, read_range
from streamer.manifest.model import ObjectRecord
from streamer.media.audio.recordings import Recording
from streamer.media.audio.windows import PCM, Integers
from streamer.media.containers.entries import TrackCodec

_READ_BYTES = 4096
_FORMS = {"<": Struct("<HHIIHH"), ">": Struct(">HHIIHH")}
_FORM_BYTES = _FORMS["<"].size
# dtypes by the tag of the format and the bytes of a PCM value. A value of fewer bits fills the upper ones, as
# libsndfile and FFmpeg read it, too.
_DTYPES = {(1, 1): "u1", (1, 2): "i2", (1, 3): "i3", (1, 4): "i4", (3, 4): "f4", (3, 8): "f8"}
# Byte orders by the first bytes of the file.
_ORDERS = {b"RIFF": "<", b"RF64": "<", b"BW64": "<", b"RIFX": ">"}
_PLAIN = 16
_EXTENSIBLE = 0xFFFE
# Writers that cannot seek leave this in place of lengths, and so does RF64. The samples then end with the file, as for
# FFmpeg and libsndfile, unless RF64 says their length elsewhere.
_UNKNOWN = 0xFFFFFFFF


class Wav(Recording, frozen=True):
    """A file of PCM values.

    Attributes:
        start: byte at which the first value begins.
        width: bytes of one sample of all channels.
    """

    start: int
    width: int

    def bounds(self, starts: Integers, stops: Integers) -> tuple[Integers, Integers]:
        """Returns the byte ranges, half-open, of these ranges of samples."""
        return self.start + starts * self.width, self.start + stops * self.width

    def sample_at(self, byte: int) -> int:
        """Returns the index of the sample that has this byte of the file."""
        return (byte - self.start) // self.width


def is_wav(head: memoryview) -> bool:
    """Returns whether a file that begins with `head` (12 bytes or more) is one of these formats."""
    return bytes(head[:4]) in _ORDERS and bytes(head[8:12]) == b"WAVE"


def read_wav(record: ObjectRecord, head: memoryview) -> Reading[Wav]:
    """Finds the samples of a file by walking over its RIFF chunks.

    Args:
        record: the object.
        head: its first bytes, 12 or more. Further ones are read where the samples begin after them.

    Raises:
        ManifestError: the file is damaged, or its values are of a type that is not cut into windows.
    """
    order = _ORDERS[bytes(head[:4])]
    at = 12
    long = 0
    base = 0
    form: tuple[TrackCodec, int] | None = None
    while at + 8 <= record.size:
        if at + 8 + _FORM_BYTES + 24 > base + len(head):
            base = at
            head = yield from read_range(at, min(record.size, at + _READ_BYTES), record)
        chunk = head[at - base :]
        kind = bytes(chunk[:4])
        length = _parse_integer(chunk[4:8], order)
        if kind == b"ds64":
            long = _parse_integer(chunk[16:24], order)
        elif kind == b"fmt ":
            form = _form(record, chunk[8 : 8 + length], at, order)
        elif kind == b"data":
            if form is None:
                raise make_damage_error(record, "it has no fmt chunk before its samples", at)
            audio, width = form
            # Recorders that were killed leave the length 0, and samples up to the end of the file. If RIFF chunks fill
            # the rest of the file, the 0 is true.
            if length == _UNKNOWN or (length == 0 and not (yield from _are_chunks(record, at + 8, order))):
                length = long or record.size
            return Wav(audio, min(length, record.size - at - 8) // width, at + 8, width)
        at += 8 + length + (length & 1)
    raise make_damage_error(record, "it is cut off before its samples (a data chunk)", min(at, record.size))


def _are_chunks(record: ObjectRecord, at: int, order: str) -> Reading[bool]:
    """Returns whether RIFF chunks begin at byte `at` and fill the rest of the file."""
    while at + 8 <= record.size:
        head = yield from read_range(at, at + 8, record)
        if not bytes(head[:4]).isascii() or not bytes(head[:4]).decode().isprintable():
            return False
        length = _parse_integer(head[4:8], order)
        at += 8 + length + (length & 1)
    return at in {record.size, record.size + 1}


def _parse_integer(content: memoryview, order: str) -> int:
    return int.from_bytes(content, "little" if order == "<" else "big")


def _form(record: ObjectRecord, content: memoryview, at: int, order: str) -> tuple[TrackCodec, int]:
    """Parses a fmt chunk. Returns the audio and the bytes of a sample of all channels; raises ManifestError."""
    if len(content) < _FORM_BYTES:
        raise make_damage_error(record, f"its fmt chunk has {len(content)} bytes", at)
    tag, channels, rate, _, width, bits = _FORMS[order].unpack_from(content)
    if tag == _EXTENSIBLE and len(content) >= 26:
        tag = _parse_integer(content[24:26], order)
    value_bytes = -(-bits // 8)
    dtype = _DTYPES.get((tag, value_bytes))
    if dtype is None:
        raise make_refusal(
            record,
            f"is WAV of tag {tag} with {bits} bits a sample; windows are cut out of PCM of at most 32 bits and "
            "of floats of 32 and 64, others are decoded as whole files (AudioClip)",
            at,
            of_one=True,
        )
    if not channels or not rate or width != channels * value_bytes:
        raise make_damage_error(
            record, f"its fmt chunk says {channels} channels, {rate} Hz, {width} bytes a sample", at
        )
    # Manifests of earlier versions have it so: values of one byte, and little-endian ones of three, name no byte order.
    named = dtype if dtype == "u1" or (dtype == "i3" and order == "<") else order + dtype
    return TrackCodec(PCM, named.encode(), rate=rate, channels=channels), width


def width_of(audio: TrackCodec) -> int:
    """Returns the bytes of a sample of all channels, by the dtype of `read_wav`."""
    return int(chr(audio.extradata[-1])) * audio.channels
