"""Windows of the sound of m4a, mp4 and mov, compared with PyAV's decoding of the whole track."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest

from streamer.errors import ManifestError
from streamer.formats.failures import DamagedError
from streamer.manifest.blocks import LONGEST_HINT
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Source
from streamer.media.audio import tracks
from streamer.media.audio.format import Audio
from streamer.media.audio.index import cut_blocks
from streamer.media.audio.recordings import AudioFrames, Packeted
from streamer.media.audio.windows import Windows
from streamer.media.containers.entries import TrackCodec
from tests.formats.cases import find, samples_in
from tests.recordings import decoded, encoded, m4a, sound
from tests.videos import video

FRAGMENTS = {"movflags": "frag_keyframe+empty_moov+default_base_moof", "frag_duration": "500000"}
RATE_OF_TRACKS = 48_000


def edited(content: bytes, media_time: int, *, ticks: int | None = None) -> bytes:
    """Returns the file with another edit: where it begins in the track, and its length in ticks of the movie."""
    at = content.index(b"elst") + 12
    length = content[at : at + 4] if ticks is None else struct.pack(">i", ticks)
    return content[:at] + length + struct.pack(">i", media_time) + content[at + 8 :]


# What is encoded, in samples, and the largest difference of a window to the whole.
NEAR = 1e-5
KINDS: dict[str, tuple[Callable[[], bytes], int, float]] = {
    "aac": (m4a, 3 * RATE_OF_TRACKS, NEAR),
    "aac, mov": (lambda: m4a(container="mov"), 3 * RATE_OF_TRACKS, NEAR),
    # What the encoder delays is played there, as the file does not say it.
    "aac, fragments": (lambda: m4a(container="mp4", **FRAGMENTS), 3 * RATE_OF_TRACKS + 1024, NEAR),
    "aac, edited": (lambda: edited(m4a(), 2500, ticks=2000), 2 * RATE_OF_TRACKS, NEAR),
    "aac, video": (lambda: video("mpeg4", 60, sound=True), 94 * 1024, NEAR),
    "alac": (lambda: m4a(codec="alac"), 3 * RATE_OF_TRACKS, 0),
    "opus": (lambda: m4a(codec="libopus", container="mp4"), 3 * RATE_OF_TRACKS, 0),
    "opus, its pre-skip in an edit": (
        lambda: edited(m4a(codec="libopus", container="mp4"), 312),
        3 * RATE_OF_TRACKS,
        0,
    ),
    "opus, fragments": (lambda: m4a(codec="libopus", container="mp4", **FRAGMENTS), 3 * RATE_OF_TRACKS, 0),
    "mp3": (lambda: m4a(codec="libmp3lame", container="mp4"), 3 * RATE_OF_TRACKS, 0),
    "mp3 without an edit": (lambda: edited(m4a(codec="libmp3lame", container="mp4"), 0), 3 * RATE_OF_TRACKS, 0),
}


def windows(chosen: Audio, content: bytes, chunk_bytes: int = 8 << 20) -> list[dict[str, object]]:
    """Returns the samples of a file."""
    return samples_in(chosen, {"a.mp4": content}, chunk_bytes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk_bytes", [5_000, pytest.param(8 << 20, marks=pytest.mark.slow)])
def test_windows_are_those_of_the_whole(kind: str, chunk_bytes: int):
    """Windows of a track are those of the decoded whole, and end where the sound that was encoded ends.

    Decoders fill the last packet.
    """
    make, total, near = KINDS[kind]
    content = make()
    whole, rate = decoded(content)
    assert total <= whole.shape[1] < total + 4096
    samples = windows(Audio(seconds=0.3, seconds_between_starts=0.1), content, chunk_bytes)
    assert len(samples) == (total - round(0.3 * rate)) // round(0.1 * rate) + 1
    for number, sample in enumerate(samples):
        first = number * round(0.1 * rate)
        assert sample["sample_rate"] == rate
        np.testing.assert_allclose(sample["audio"], whole[:, first : first + round(0.3 * rate)], 0, near)


def test_noise_that_decoders_draw_is_the_same_again():
    """A window of AAC is the same whichever were decoded before it, also where the decoder draws noise."""
    content = encoded("aac", "ipod", sound(1, 1, 48_000), 48_000, noise=True)
    one, other = (windows(Audio(seconds=0.2), content) for _ in range(2))
    assert len(one) == 5
    assert all(np.array_equal(a["audio"], b["audio"]) for a, b in zip(one, other, strict=True))
    last = windows(Audio(seconds=0.2, seconds_between_starts=0.4), content)[-1]
    assert np.array_equal(last["audio"], one[4]["audio"])


def test_when_a_window_begins_is_when_it_is_played():
    """A window of Opus in mp4 begins at the time when it is played, after the codec's pre-skip."""
    first = windows(Audio(seconds=0.2), m4a(codec="libopus", container="mp4"))[0]
    assert (first["start_seconds"], first["__key__"]) == (312 / 48_000, "a.mp4#t=0.0065,0.2065")


def test_fetches_sound_without_the_pictures_between():
    """Windows of sound skip video of more than 64 KiB between them, and the index reads the boxes alone."""
    content = video("rawvideo", 60, name="x.mov", sound=True)
    found = find(Audio(seconds=0.1, seconds_between_starts=1.0), {"a.mp4": content})
    ((_, (block,)),) = found.items
    assert len(block.ranges) == 2
    assert block.fetch_bytes < len(content) // 4
    assert sum(need.stop - need.start for asked in found.needs[found.items[0][0].record.url] for need in asked) < 12_000


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (video("mpeg4", 4), "has no track of kind 'soun'"),
        (m4a(0.2)[:-3_000], "cut off: "),
        (m4a(0.2).replace(b"\x03\x80\x80\x80", b"\x07\x80\x80\x80"), "is encoded as 'mp4a'"),
        (encoded("ac3", "mp4", sound(0.3, 1, 48_000), 48_000), "codec 'ac3'"),
    ],
)
def test_what_has_no_sound_that_is_read_is_refused(content: bytes, reason: str):
    """A file without a track of sound that is read is refused with what it has."""
    with pytest.raises(ManifestError, match=reason):
        find(Audio(), {"a.mp4": content})


def test_the_track_is_chosen_by_its_number():
    """`stream_index` counts all tracks, and a track without sound is refused."""
    content = video("mpeg4", 10, sound=True)
    assert len(windows(Audio(seconds=0.1, stream_index=1), content)) == 3
    with pytest.raises(ManifestError, match="no track, number 0, of kind 'soun'"):
        find(Audio(stream_index=0), {"a.mp4": content})


@pytest.mark.parametrize(
    ("config", "rate", "samples"),
    [
        ("1210", 44_100, 1024),
        ("1214", 44_100, 960),
        ("118856e500", 48_000, 1024),
        ("2b920800", 44_100, 2048),
        ("139056e5a0", 44_100, 2048),
        ("17800fa010", 8_000, 1024),
    ],
    ids=["LC", "of 960", "without SBR, said", "SBR around", "SBR behind", "any rate"],
)
def test_what_aac_tells_its_decoder(config: str, rate: int, samples: int):
    """The AAC configuration gives the decoded rate and the samples of a packet."""
    sound, each = tracks._aac(TrackCodec("aac", bytes.fromhex(config), rate=1, channels=2))
    assert (sound.rate, each) == (rate, samples)


@pytest.mark.parametrize(
    ("config", "reason"),
    [("f94c0000", "object type 42"), ("139056e5e8", "and 0 Hz with SBR"), ("12", "ends after 1 bytes")],
)
def test_other_aac_is_refused(config: str, reason: str):
    """xHE-AAC, which not every FFmpeg reads, a rate that no number names, and a cut configuration are refused."""
    with pytest.raises(DamagedError, match=reason):
        tracks._aac(TrackCodec("aac", bytes.fromhex(config), rate=1, channels=2))


@pytest.mark.parametrize("between", [0, 60_000])
def test_hints_of_many_packets_are_short(between: int):
    """Hints of 60,000 packets stay below LONGEST_HINT, because blocks are cut where lengths compress badly."""
    drawn, count = np.random.default_rng(0), 60_000
    sizes, gaps = drawn.integers(30, 700, count), drawn.integers(0, between + 1, count)
    offsets = np.cumsum(sizes + gaps) - sizes
    firsts = 960 * np.arange(count + 1)
    recording = Packeted(
        TrackCodec("opus", rate=48_000, channels=1), int(firsts[-1]), AudioFrames(offsets, sizes, firsts, 48_000)
    )
    source = Source(ObjectRecord("x.mp4", int(offsets[-1] + sizes[-1]), ""), chunk_bytes=1 << 40)
    blocks = list(cut_blocks(source, recording, Windows.cut(recording.total, 480_000, 480_000, pad=True)))
    assert len(blocks) > 2
    assert LONGEST_HINT // 3 < max(len(block.hint) for block in blocks) < LONGEST_HINT
