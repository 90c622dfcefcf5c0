"""The index of mp4 and mov: packets are those of FFmpeg's demuxer; damaged files are refused with what is wrong."""

from __future__ import annotations

import io
import random
import struct

import av
import numpy as np
import pytest

from streamer.formats.failures import DamagedError, UnreadError
from streamer.media.containers.boxes import boxes
from streamer.media.containers.clips import FrameTable
from streamer.media.containers.movie import Movie
from streamer.media.containers.tables import Edit, Shift, shift_of
from tests.videos import KINDS, index_of, made


def demuxed(content: bytes, stream: int) -> list[tuple[object, ...]]:
    """Returns what FFmpeg tells of the packets of a stream."""
    with av.open(io.BytesIO(content)) as box:
        packets = [packet for packet in box.demux(box.streams[stream]) if packet.size]
        return sorted((p.pos, p.size, p.pts, bool(p.is_keyframe), not p.is_discard) for p in packets)


def indexed(movie: Movie, stream: int) -> list[tuple[object, ...]]:
    found = movie.packets(movie.tracks[stream])
    columns = (found.offset, found.size, found.pts, found.key, found.shown)
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize("name", KINDS)
def test_packets_are_those_of_the_demuxer(name: str):
    """Packets of every track have FFmpeg's offset, size, time, key and shown flags, in every kind of file."""
    movie, _ = index_of(made(name))
    assert len(movie.tracks) == 1 + ("sound" in name)
    for number in range(len(movie.tracks)):
        assert indexed(movie, number) == demuxed(made(name), number)


@pytest.mark.parametrize("name", ["b_frames.mp4", "sound.mp4", "sound.mov"])
def test_little_is_read(name: str):
    """An index reads at most three ranges and, besides moov, two times 4 KiB."""
    _, asked = index_of(content := made(name))
    ranges = [each for asks in asked for each in asks]
    moov = next(len(body) for kind, body in boxes(memoryview(content)) if kind == b"moov")
    assert len(ranges) <= 3
    assert sum(stop - start for start, stop in ranges) <= moov + 2 * 4096


def test_parameters_of_decoders():
    """A track names FFmpeg's decoder with size, or rate and channels; encrypted and unread codecs are refused."""
    video, sound = index_of(made("sound.mp4"))[0].tracks
    assert (video.codec().name, video.codec().width, video.codec().height) == ("h264", 128, 96)
    assert (sound.codec().name, sound.codec().rate, sound.codec().channels) == ("aac", 48000, 1)
    assert sound.codec().extradata == b"\x11\x88\x56\xe5\x00"
    assert index_of(made("hevc.mp4"))[0].tracks[0].codec().name == "hevc"
    with pytest.raises(UnreadError, match="is encrypted, and streamer has no keys"):
        index_of(made("sound.mp4").replace(b"avc1", b"encv"))[0].tracks[0].codec()
    with pytest.raises(UnreadError, match="is encrypted, and streamer has no keys"):
        index_of(made("sound.mp4").replace(b"avcC", b"sinf"))[0].tracks[0].codec()
    with pytest.raises(UnreadError, match="is encoded as 'dvh1', which is not read"):
        index_of(made("sound.mp4").replace(b"avc1", b"dvh1"))[0].tracks[0].codec()


def test_the_track_is_the_one_with_most_pixels():
    """The track with most pixels is read, or the one that is named, which must be of the wanted kind."""
    movie, _ = index_of(made("sound.mp4"))
    assert movie.track("vide") is movie.tracks[0]
    assert movie.track("soun", 1) is movie.tracks[1]
    with pytest.raises(UnreadError, match=r"has no track, number 1, of kind 'vide': it has \['vide', 'soun'\]"):
        movie.track("vide", 1)


def test_what_is_cut_off_says_where():
    """A file that is cut off before its index or in its packets raises an error with the place."""
    content = made("b_frames.mp4")
    with pytest.raises(
        DamagedError, match=r"cut off: mdat goes from byte \d+ to \d+, .* its index \(moov\) is missing"
    ):
        index_of(content[:3000])
    fast = made("sound.mp4")
    with pytest.raises(DamagedError, match=r"cut off: moov goes from byte \d+ to \d+, the file has 600 bytes"):
        index_of(fast[:600])
    movie, _ = index_of(fast[:-8000])
    with pytest.raises(
        DamagedError, match=r"cut off: packet \d+ of 90 goes from byte \d+ to \d+, the file has \d+ bytes"
    ):
        movie.packets(movie.track("vide"))
    with pytest.raises(UnreadError, match="does not begin as mp4 and mov files do, but with 'ABCD'"):
        index_of(b"\0\0\0\x10ABCD" + bytes(100))


def frames_of(content: bytes) -> FrameTable:
    movie, _ = index_of(content)
    return FrameTable.from_packets(movie.packets(movie.track("vide")))


def changed(name: str, box: bytes, at: int, number: int) -> bytes:
    """Makes a video with another number in the first box of this type, `at` bytes behind its type."""
    content = bytearray(made(name))
    start = content.index(box) + 4 + at
    content[start : start + 4] = struct.pack(">I", number)
    return bytes(content)


@pytest.mark.parametrize(
    ("name", "box", "at", "number", "said"),
    [
        ("sound.mp4", b"stts", 8, 80, "stts has 80 samples, stsz 90"),
        ("b_frames.mp4", b"ctts", 4, 1, r"ctts has \d+ samples, stsz 90"),
        ("sound.mp4", b"stss", 8, 91, "stss names sample 91 of 90"),
        ("sound.mp4", b"stsz", 8, 10**6, r"stsz has 1000000 entries, more than fit into its \d+ bytes"),
        ("sound.mp4", b"stsc", 8, 2, "stsc does not ascend from chunk 1 to the last one"),
        ("sound.mp4", b"stco", 8, 10**6, r"track 1: cut off: packet 0 of 90 goes from byte 1000000 to"),
        ("sound.mp4", b"elst", 4, 10**6, r"elst has 1000000 entries, more than fit"),
        ("b_frames.mp4", b"stts", 12, 0, r"two frames at -?\d+ ticks"),
        ("sound.mp4", b"stss", 4, 0, "frames without a key frame before them"),
    ],
)
def test_tables_that_contradict_each_other(name: str, box: bytes, at: int, number: int, said: str):
    """Tables that contradict each other raise DamagedError with the table and the numbers."""
    with pytest.raises(DamagedError, match=said):
        frames_of(changed(name, box, at, number))


def test_edit_lists():
    """Empty edits and one edit of the media shift the times, rounded as in FFmpeg; other edit lists are refused."""
    plain = 1 << 16
    edits = [Edit(500, -1, plain), Edit(2000, 1024, plain)]
    assert shift_of(edits, 90_000, 1000, fragmented=False) == Shift(1024 - 45_000, 1024, 1024 + 180_000)
    assert shift_of(edits, 90_000, 1000, fragmented=True) == Shift(1024 - 45_000)
    assert shift_of([], 90_000, 1000, fragmented=False).ticks == 0
    with pytest.raises(UnreadError, match="several edits"):
        shift_of([edits[1], edits[1]], 90_000, 1000, fragmented=False)
    with pytest.raises(UnreadError, match=r"rate 0\.5"):
        shift_of([Edit(1, 0, plain // 2)], 90_000, 1000, fragmented=False)


@pytest.mark.parametrize(("name", "earlier"), [("open_gop.mp4", 1), ("hevc.mp4", 2), ("b_frames.mp4", 0)])
def test_frames_of_open_gops_begin_a_key_packet_earlier(name: str, earlier: int):
    """A picture that is shown before the key picture before it in the file begins at the key picture before that."""
    movie, _ = index_of(made(name))
    packets = movie.packets(movie.track("vide"))
    frames = FrameTable.from_packets(packets)
    assert (packets.pts[frames.start] <= frames.pts).all()
    assert packets.key[frames.start].all()
    keys = packets.key.nonzero()[0]
    nearest = keys[np.searchsorted(keys, frames.packet, "right") - 1]
    assert (nearest != frames.start).sum() >= earlier


def test_mutations_are_refused_or_read():
    """Damaged indexes raise DamagedError or UnreadError, or are read; no other error comes from the parser."""
    rng, refused = random.Random(0), 0
    for name in ("sound.mp4", "fragments.mp4"):
        original = made(name)
        start = original.find(b"moov")
        for _ in range(150):
            content = bytearray(original)
            at = rng.randrange(start, min(len(content), start + 4000))
            content[at : at + 4] = rng.choice(
                [b"\xff\xff\xff\xff", bytes(4), b"\x7f\xff\xff\xff", struct.pack(">I", at)]
            )
            try:
                movie, _ = index_of(bytes(content))
                track = movie.track("vide")
                track.codec()
                FrameTable.from_packets(movie.packets(track))
            except (DamagedError, UnreadError):
                refused += 1
    assert refused > 50
