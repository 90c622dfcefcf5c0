"""Finds the packets of audio tracks in mp4, m4a and mov: AAC, ALAC, FLAC, MP3 and Opus.

`index.py` reads files of audio with it, and `media/video/format.py` the audio of videos. `read_track` asks for bytes by
`yield` (`formats/reading.py`), so there is no I/O here. A "sample" here is a value of each channel at one time.

Source: ISO/IEC 14496-3, 1.6.2 (what AAC tells its decoder). Encapsulation of Opus in ISO Base Media File Format, 4.3.
"""

from __future__ import annotations

import msgspec
import numpy as np

from streamer.formats.failures import DamagedError, UnreadError, errors_of
from streamer.formats.reading import Reading
from streamer.manifest.model import ObjectRecord
from streamer.media.audio import flac, mp3, ogg
from streamer.media.audio.recordings import AudioFrames, Packeted
from streamer.media.containers.entries import TrackCodec
from streamer.media.containers.movie import AUDIO, Movie, read_movie

# So many packets of AAC before a wanted one are decoded, because packets overlap. With two the difference to a decode
# of the whole file is 2.1e-6 at most (2026-11-24).
_AAC_LEAD = 2
_AAC_RATES = (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000, 7350)
# Object types that are read: Main, LC, SSR, LTP. Then the types that announce another rate before such a type, and the
# mark that announces it after one.
_AAC_PLAIN = range(1, 5)
_AAC_WIDE = (5, 29)
_AAC_MARK = 0x2B7


def read_track(record: ObjectRecord, head: memoryview, stream_index: int | None) -> Reading[Packeted]:
    """Reads the index of a file, and returns the packets of an audio track.

    Args:
        record: the object.
        head: its first bytes.
        stream_index: number of the track. None means the first one with audio.

    Raises:
        ManifestError: the file is damaged, or has no such track that is read.
    """
    with errors_of(record, "copy it anew", of_one=True):
        return find_audio_track((yield from read_movie(record, head)), stream_index)


def find_audio_track(movie: Movie, stream_index: int | None = None) -> Packeted:
    """Finds the packets of an audio track, and the samples of each that are played.

    Args:
        movie: the index of the file.
        stream_index: number of the track. None means the first one with audio.

    Raises:
        DamagedError: its tables are damaged.
        UnreadError: there is no such track, or its codec, times or order of packets are not read.
    """
    track = movie.track(AUDIO, stream_index)
    audio, each, lead, skip = _describe(track.codec())
    packets = movie.packets(track)
    if packets.entry.any():
        raise UnreadError("has audio whose codec parameters change")
    if (np.diff(packets.offset) < packets.size[:-1]).any():
        raise UnreadError("has audio whose packets are not stored in their order")
    # Packets behind the last one that is shown are left out.
    count = int(np.flatnonzero(packets.shown).max(initial=-1)) + 1
    # A packet has `each` samples, the last one at most so many. If `each` is 0, the durations of packets say it.
    durations = packets.duration[:count]
    counts = durations * audio.rate
    if not each and (counts % track.timescale).any():
        raise UnreadError(f"has times in 1/{track.timescale} s, which are not whole samples of {audio.rate} Hz")
    counts //= track.timescale
    if each and len(counts):
        last = int(counts[-1])
        counts[:] = each
        counts[-1] = last if 0 < last < each else each
    # Files of faac begin with two packets of one time, of which the first one decodes to nothing.
    counts[:-1][np.diff(packets.pts[:count]) == 0] = 0
    begin, length = movie.find_edit(track)
    early = int(begin - packets.pts[0]) if count else 0
    skip = max(skip, early * audio.rate // track.timescale)
    firsts = np.append(0, np.cumsum(counts)) - skip
    total = int(firsts[-1])
    # The duration of the last packet is exact, that of an edit only to the tick of the movie.
    played = length * audio.rate // track.timescale
    if length and (total - played) * movie.timescale >= audio.rate:
        total = played
    seconds = float(packets.pts[0] / track.timescale + skip / audio.rate) if count else 0.0
    frames = AudioFrames(packets.offset[:count], packets.size[:count], firsts, lead)
    return Packeted(audio, max(0, total), frames, seconds)


def _describe(codec: TrackCodec) -> tuple[TrackCodec, int, int, int]:
    """Returns what the codec of a track says.

    Returns:
        The codec with rate and channels as its decoder has them, the samples of a packet (0 if they differ), the
        samples before a wanted one that are decoded too, and those that are not played at the beginning.

    Raises:
        DamagedError, UnreadError: the codec, or what it tells its decoder, is not read.
    """
    setup = codec.extradata
    if codec.name == "aac":
        audio, each = _aac(codec)
        return audio, each, _AAC_LEAD * each, 0
    if codec.name == "alac" and len(setup) >= 36:
        sizes = {"rate": int.from_bytes(setup[32:36], "big"), "channels": setup[21]}
        return msgspec.structs.replace(codec, **sizes), int.from_bytes(setup[12:16], "big"), 0, 0
    if codec.name == "flac" and len(setup) >= flac.INFO_BYTES:
        return flac.parse_codec(setup), flac.block_of(setup), 0, 0
    if codec.name == "mp3float":
        each = 1152 if codec.rate >= 32_000 else 576
        return codec, each, mp3.LEAD_FRAMES * each, 0
    if codec.name == "opus" and len(setup) >= 19:
        return ogg.parse_codec(setup), 0, ogg.LEAD, ogg.skip_of(setup)
    raise UnreadError(
        f"has audio of codec {codec.name!r} with {len(setup)} bytes for the decoder; AAC, ALAC, FLAC, MP3 and Opus "
        "are read"
    )


def _aac(codec: TrackCodec) -> tuple[TrackCodec, int]:
    """Reads the AudioSpecificConfig of AAC; returns the codec with rate and channels, and the samples of a packet.

    Raises:
        DamagedError: it is cut off.
        UnreadError: its object type or rate is not read.
    """
    bits = "".join(f"{byte:08b}" for byte in codec.extradata)
    at = 0

    def take(count: int) -> int:
        nonlocal at
        at += count
        if at > len(bits):
            raise DamagedError(f"what AAC tells its decoder ends after {len(codec.extradata)} bytes")
        return int(bits[at - count : at], 2)

    def kind() -> int:
        return found if (found := take(5)) < 31 else 32 + take(6)

    def hertz() -> int:
        number = take(4)
        return take(24) if number == 15 else _AAC_RATES[number] if number < len(_AAC_RATES) else 0

    found = kind()
    rate = hertz()
    channels = take(4)
    wide = rate
    if found in _AAC_WIDE:
        wide = hertz()
        found = kind()
    each = 960 if take(1) else 1024
    if (marked := bits.find(f"{_AAC_MARK:011b}00101" + "1", at)) >= 0:
        at = marked + 17
        wide = hertz()
    if found not in _AAC_PLAIN or not rate or not wide:
        raise UnreadError(f"has AAC of object type {found}, {rate} Hz and {wide} Hz with SBR, which is not read")
    return msgspec.structs.replace(codec, rate=wide, channels=channels or codec.channels), each * wide // rate
