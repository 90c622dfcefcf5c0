"""Reads sample entries of MP4 and QuickTime, which say the codec parameters of a track, to a `TrackCodec`.

`movie.py` reads them. All readers of video and audio files, records and decoders in `media/` use `TrackCodec`.
"""

from __future__ import annotations

import struct

import msgspec

from streamer.formats.failures import DamagedError, UnreadError
from streamer.media.containers.boxes import boxes, name_of, numbers

# FFmpeg's names of decoders by type of the entry. AV1 has dav1d, which decodes what FFmpeg's own decoder does not.
CODECS = {
    b"avc1": "h264", b"avc3": "h264", b"hvc1": "hevc", b"hev1": "hevc", b"av01": "libdav1d", b"vp08": "vp8",
    b"vp09": "vp9", b"mp4v": "mpeg4", b"jpeg": "mjpeg", b"mjpa": "mjpeg", b"Opus": "opus", b"fLaC": "flac",
    b"alac": "alac", b".mp3": "mp3float", b"ac-3": "ac3", b"ec-3": "eac3", b"mp4a": "",
    **dict.fromkeys([b"apcn", b"apch", b"apcs", b"apco", b"ap4h"], "prores"),
}  # fmt: skip
# FFmpeg's names of decoders by objectTypeIndication of esds (ISO/IEC 14496-1).
OBJECT_TYPES = {
    0x20: "mpeg4", 0x40: "aac", 0x6A: "mpeg1video", 0x69: "mp3float", 0x6B: "mp3float", 0x6C: "mjpeg", 0x6D: "png",
    0xA5: "ac3", 0xA6: "eac3", 0xDD: "vorbis", **dict.fromkeys(range(0x60, 0x66), "mpeg2video"),
    **dict.fromkeys([0x66, 0x67, 0x68], "aac"),
}  # fmt: skip
# Degrees counterclockwise by which frames are turned, by the signs of the numbers a, b, c, d of a track's matrix.
TURNS = {(1, 0, 0, 1): 0, (0, 1, -1, 0): 270, (-1, 0, 0, -1): 180, (0, -1, 1, 0): 90}
ENCRYPTED = "is encrypted, and streamer has no keys"
_VIDEO_BYTES = 86
_AUDIO_BYTES = 36
# Entries of audio in versions 1 and 2 of QuickTime are so many bytes longer.
_LONGER = {1: 16, 2: 36}
_OPUS_RATE = 48_000
# Tags of the descriptors in esds.
_ES = 3
_DECODER_CONFIG = 4
_DECODER_SPECIFIC = 5


class TrackCodec(msgspec.Struct, frozen=True, array_like=True):
    """The codec of a track, with all that a decoder must know before its packets.

    Attributes:
        name: FFmpeg's name of the decoder, or "pcm" for PCM values (`media/audio/windows.py`).
        extradata: codec parameters as FFmpeg takes them, such as the body of avcC, or the AudioSpecificConfig.
        width, height: pixels of a frame, or 0 for audio.
        rotation: degrees counterclockwise by which frames are turned: 0, 90, 180 or 270.
        colour: primaries, transfer, matrix (numbers of ISO/IEC 23091-2), and whether the range is full. None means that
            the file does not say it.
        rate, channels: samples a second and number of channels, or 0 for video.
    """

    name: str
    extradata: bytes = b""
    width: int = 0
    height: int = 0
    rotation: int = 0
    colour: tuple[int, int, int, bool] | None = None
    rate: int = 0
    channels: int = 0


def read_codec(entry: bytes, *, video: bool, rotation: int = 0) -> TrackCodec:
    """Reads a sample entry of a video or audio track.

    Args:
        entry: the entry, its header included.
        video: whether it is of a video track; otherwise it is of an audio track.
        rotation: degrees counterclockwise by which frames of the track are turned.

    Raises:
        UnreadError: the track is encrypted, or its codec is not read.
        DamagedError: the entry is cut off.
    """
    kind = entry[4:8]
    if kind in {b"encv", b"enca"}:
        raise UnreadError(ENCRYPTED)
    found: dict[str, object] = {"name": CODECS.get(kind, ""), "extradata": b""}
    if video:
        width, height = numbers(">HH", entry, 32)
        codec = TrackCodec("", width=width, height=height, rotation=rotation)
        at = _VIDEO_BYTES
    else:
        [version] = numbers(">H", entry, 16)
        [channels] = numbers(">H", entry, 24)
        [rate] = numbers(">I", entry, 32)
        codec = TrackCodec("", rate=rate >> 16, channels=channels)
        at = _AUDIO_BYTES + _LONGER.get(version, 0)
    for inner, body in boxes(memoryview(entry)[at:]):
        if inner == b"sinf":
            raise UnreadError(ENCRYPTED)
        codec = msgspec.structs.replace(codec, **_read_box(inner, body, found))
    if not found["name"]:
        raise UnreadError(f"is encoded as {name_of(kind)}, which is not read")
    return msgspec.structs.replace(codec, **found)


def _read_box(kind: bytes, body: memoryview, found: dict[str, object]) -> dict[str, object]:
    """Reads a box inside an entry: sets "name" and "extradata" in `found`, and returns other attributes by name."""
    if kind in {b"avcC", b"hvcC", b"av1C"}:
        found["extradata"] = bytes(body)
    elif kind == b"esds":
        number, found["extradata"] = _descriptors(bytes(body))
        found["name"] = OBJECT_TYPES.get(number, "")
    elif kind == b"dOps":
        version, channels, skipped, rate, gain = numbers(">BBHIh", body)
        head = struct.pack("<BBHIh", version + 1, channels, skipped, rate, gain)
        found["extradata"] = b"OpusHead" + head + bytes(body[10:])
        return {"rate": _OPUS_RATE, "channels": channels}
    elif kind == b"dfLa":
        found["extradata"] = bytes(body[8:42])
    elif kind == b"wave":
        for inner, each in boxes(body):
            if inner in {b"esds", b"alac"}:
                _read_box(inner, each, found)
    elif kind == b"alac":
        # FFmpeg takes the whole box.
        found["extradata"] = struct.pack(">I4s", len(body) + 8, kind) + bytes(body)
    elif kind == b"colr" and bytes(body[:4]) in {b"nclx", b"nclc"}:
        full = len(body) > 10 and bool(body[10] & 0x80)
        return {"colour": (*numbers(">HHH", body, 4), full)}
    return {}


def _descriptors(body: bytes) -> tuple[int, bytes]:
    """Reads the body of esds: the objectTypeIndication, and the codec parameters; raises DamagedError."""
    at = 4
    kind = 0
    specific = b""
    try:
        while at + 2 <= len(body):
            tag = body[at]
            at += 1
            length = 0
            more = True
            while more:
                length = length << 7 | body[at] & 0x7F
                more = bool(body[at] & 0x80)
                at += 1
            if tag == _ES:
                flags = body[at + 2]
                at += 3 + 2 * bool(flags & 0x80) + 2 * bool(flags & 0x20)
                at += body[at] + 1 if flags & 0x40 else 0
            elif tag == _DECODER_CONFIG:
                kind = body[at]
                at = at + 13
            else:
                specific = body[at : at + length] if tag == _DECODER_SPECIFIC else specific
                at += length
    except IndexError as error:
        raise DamagedError("esds is cut off") from error
    return kind, specific
