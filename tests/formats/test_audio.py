"""Windows of audio files meet the contract of the formats, and are those of PyAV's decoding of the whole file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.decode import AudioClip
from streamer.errors import ConfigError, ManifestError, RecodeError
from streamer.formats.base import Facts
from streamer.formats.registry import find_format
from streamer.media.audio import flac as flac_files
from streamer.media.audio import ogg
from streamer.media.audio.format import Audio
from streamer.media.audio.windows import WindowHeader, Windows, cut_parts
from streamer.media.containers.entries import TrackCodec
from tests.formats.cases import Case, find, recode, samples_in
from tests.formats.contract import FormatContract, samples_of
from tests.formats.summary import summary
from tests.recordings import decoded, flac, m4a, mp3, opus, sound, vorbis, wav


def expected(name: str, chosen: Audio, samples: np.ndarray, rate: int) -> list[dict[str, object]]:
    """Returns the windows of a recording, cut out of all of it."""
    length, step = (round(rate * (each or chosen.seconds)) for each in (chosen.seconds, chosen.seconds_between_starts))
    found, total = [], samples.shape[1]
    for start in range(0, total, step):
        window = samples[:, start : start + length]
        behind = start and start - step + length >= total
        if window.shape[1] < length and (chosen.at_end == "drop" or behind):
            break
        stop = start + window.shape[1]
        window = np.pad(window, ((0, 0), (0, length - window.shape[1])))
        found.append(
            {
                "__key__": f"{name}#t={start / rate:.6g},{stop / rate:.6g}",
                "audio": summary(window),
                "sample_rate": rate,
                "start_seconds": start / rate,
            }
        )
    return found


def case(chosen: Audio, name: str, objects: dict[str, bytes]) -> Case:
    """Makes a dataset whose samples PyAV tells."""
    samples = [
        sample for key, content in sorted(objects.items()) for sample in expected(key, chosen, *decoded(content))
    ]
    return Case(name, chosen, objects, samples, copied=frozenset(["sample_rate"]))


class TestAudio(FormatContract):
    @classmethod
    def cases(cls) -> list[Case]:
        overlapping = Audio(seconds=1.0, seconds_between_starts=0.25)
        return [
            case(Audio(seconds=0.5), "wav", {"a/0.wav": wav(sound(3.2)), "b/1.wav": wav(sound(2, 2))}),
            case(overlapping, "wav that overlap", {"0.wav": wav(sound(3.2, 2))}),
            case(Audio(seconds=0.1, seconds_between_starts=4.5, at_end="pad"), "wav apart", {"0.wav": wav(sound(50))}),
            case(overlapping, "flac", {"0.flac": flac(), "1.flac": flac(0.5)}),
            case(Audio(seconds=0.7, at_end="pad"), "mp3", {"0.mp3": mp3(), "1.mp3": mp3(2, 44_100)}),
            case(overlapping, "opus", {"0.opus": opus()}),
            case(overlapping, "vorbis", {"0.ogg": vorbis()}),
            case(overlapping, "tracks", {"0.m4a": m4a(codec="alac"), "1.mov": m4a(1, "libmp3lame", "mov")}),
        ]


@pytest.mark.parametrize("make", [flac, mp3, lambda: opus(6), lambda: vorbis(6)])
@pytest.mark.parametrize("chunk_bytes", [3_000, 9_000])
def test_windows_do_not_depend_on_chunks(make: Callable[[], bytes], chunk_bytes: int, monkeypatch: pytest.MonkeyPatch):
    """Windows of audio are the same however small the blocks are of which they are cut."""
    for module in (flac_files, ogg):
        monkeypatch.setattr(module, "PROBE_BYTES", 16_000)
    chosen = Audio(seconds=0.5, seconds_between_starts=0.2, at_end="pad")
    one = case(chosen, "one", {"0.flac": make()})
    found = find(chosen, one.objects, chunk_bytes)
    assert len(found.items[0][1]) > 1
    monkeypatch.setattr("tests.formats.contract.find", lambda chosen, objects: find(chosen, objects, chunk_bytes))
    assert samples_of(one) == list(one.samples)


def test_a_chunk_has_what_windows_share_once():
    """A chunk of overlapping windows has the file's samples once, and a header for each window."""
    content = wav(sound(60))
    ((_, (block,)),) = find(Audio(seconds=1.0, seconds_between_starts=0.25), {"0.wav": content}).items
    made = Audio().recoder(Facts()).recode(memoryview(content)[44:], block.samples, block.hint)
    assert block.ranges == ((44, len(content)),)
    assert sum(map(len, made.shared_parts)) == len(content) - 44
    assert block.record_bytes >= len(content) - 44 + sum(made.lengths)


@pytest.mark.parametrize("make", [lambda: wav(sound(3)), flac, lambda: m4a(codec="alac")])
@pytest.mark.parametrize("chunk_bytes", [9_000, 8 << 20])
def test_drawn_windows_are_inside_of_their_cells(make: Callable[[], bytes], chunk_bytes: int):
    """Equal generators draw equal windows, each within its cell; without a generator they begin in the middle."""
    content = make()
    whole, rate = decoded(content)
    chosen = Audio(seconds=0.5, seconds_between_starts=0.4, start="random")
    starts = []
    for draws in (None, *(partial(np.random.default_rng, seed) for seed in (1, 2, 1))):
        samples = samples_in(chosen, {"0.wav": content}, chunk_bytes, draws)
        starts.append([round(sample["start_seconds"] * rate) for sample in samples])
        for sample, start in zip(samples, starts[-1], strict=True):
            assert np.array_equal(sample["audio"], whole[:, start : start + rate // 2])
    assert starts[1] == starts[3] != starts[2]
    assert starts[0] == [round(rate * middle) for middle in (0.2, 0.6, 1.0, 1.4, 1.8, 2.2, 2.45)]
    assert all(int(start // (0.4 * rate)) == cell for found in starts for cell, start in enumerate(found))


def test_drawn_windows_are_uniform():
    """10,000 drawn starts are uniform in their cell: chi-square of ten parts stays below the limit of p = 0.001."""
    head = WindowHeader("a.wav", TrackCodec("pcm"), 0, 500, 2_000, 501, places=1_000)
    found = np.bincount([(head.draw(np.random.default_rng(seed)) - 500) // 100 for seed in range(10_000)])
    assert len(found) == 10
    assert ((found - 1_000) ** 2 / 1_000).sum() < 27.9


@pytest.mark.parametrize(("between", "ranges"), [(0.5, 1), (5.0, 12)])
def test_windows_apart_are_fetched_alone(between: float, ranges: int):
    """Windows with more than 64 KiB between them are a range of bytes each; nearer ones are one range."""
    content = wav(sound(60))
    ((_, (block,)),) = find(Audio(seconds=0.1, seconds_between_starts=between), {"0.wav": content}).items
    assert len(block.ranges) == ranges


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 60)), min_size=1, max_size=20))
def test_shared_parts_are_the_ranges(spans: list[tuple[int, int]]):
    """The shared parts of overlapping ranges, joined, are each range, and have each unit exactly once."""
    lower, upper = (np.array(sorted(column)) for column in zip(*((a, a + b) for a, b in spans), strict=True))
    begin, end, ranges = cut_parts(lower, upper)
    parts = [set(range(*edges)) for edges in zip(begin, end, strict=True)]
    assert sum(map(len, parts)) == len(set().union(*parts, *()))
    for first, stop, ((one, other),) in zip(lower, upper, ranges, strict=True):
        assert set().union(*parts[one:other]) == set(range(first, stop))
    assert set().union(*parts) == {unit for edges in zip(lower, upper, strict=True) for unit in range(*edges)}


@pytest.mark.parametrize(
    ("total", "length", "step", "kept", "padded"),
    [
        (0, 10, 10, 0, 0),
        (9, 10, 10, 0, 1),
        (10, 10, 10, 1, 1),
        (21, 10, 5, 3, 4),
        (25, 10, 10, 2, 3),
        (21, 2, 20, 1, 2),
    ],
)
def test_windows_of_a_recording(total: int, length: int, step: int, kept: int, padded: int):
    """`Windows.cut` counts the windows inside a recording; "pad" adds one for samples that remain at the end."""
    assert Windows.cut(total, length, step, pad=False).count == kept
    assert Windows.cut(total, length, step, pad=True).count == padded


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"RIFF\0\0\0\0WAVEfmt ", "cut off before its samples"),
        (wav(sound(1))[:30], "its fmt chunk has 10 bytes"),
        (wav(sound(1)).replace(b"\x01\0\x01\0", b"\x06\0\x01\0", 1), "WAV of tag 6 with 16 bits"),
        (flac()[:20], "does not begin with STREAMINFO"),
        (flac()[:60], "head is cut off"),
        (opus().replace(b"OpusHead", b"\x01vorbis\0"), "the heads of Vorbis are cut off"),
        (vorbis().replace(b"\5vorbis", b"\7vorbis"), "the heads of Vorbis are cut off"),
        (b"OggS", "Ogg of neither Opus nor Vorbis"),
        (b"ID3\x04\0\0\0\0\0\0", "no frame of MP3"),
        (b"something", "begins with b'some'"),
        (b"", "it is empty"),
    ],
)
def test_what_is_no_recording_is_refused(content: bytes, reason: str):
    """Bytes that are no audio file, or one in an unknown coding, are refused with what they are."""
    with pytest.raises(ManifestError, match=reason):
        find(Audio(), {"0.wav": content})


def test_a_recording_that_is_cut_off_is_refused_by_the_recoder():
    """A FLAC file that has fewer samples than its header says is refused by the recoder."""
    content = flac()[:-5_000]
    found = find(Audio(seconds=1.0), {"0.flac": content})
    with pytest.raises(RecodeError, match="samples 0 to 24000 are wanted, there are 0 to"):
        recode(Audio(), found, found.items[0][1][0], content[8_288:])


@pytest.mark.parametrize("length", [0, 0xFFFFFFFF, 0x7FFFF000])
def test_a_wav_that_was_not_closed_is_read_to_its_end(length: int):
    """A WAV file without a true length is read to its end.

    A recorder that was killed leaves 0 as the length of the numbers, one that writes to a pipe all ones.
    """
    content = wav(sound(2))
    killed = content[:40] + length.to_bytes(4, "little") + content[44:]
    chosen = Audio(seconds=0.5)
    closed, found = (samples_in(chosen, {"0.wav": each}) for each in (content, killed))
    assert len(found) == 4
    for sample, other in zip(found, closed, strict=True):
        assert np.array_equal(sample["audio"], other["audio"])
    assert np.array_equal(AudioClip()(killed)["audio"], AudioClip()(content)["audio"])


def test_a_wav_that_is_cut_off_is_a_shorter_one():
    """A WAV file that is cut off is read as a shorter one, as FFmpeg reads it."""
    samples = samples_in(Audio(seconds=0.5), {"0.wav": wav(sound(2))[:-5_000]})
    assert [sample["start_seconds"] for sample in samples] == [0.0, 0.5, 1.0]


@pytest.mark.parametrize("options", [{"seconds": 0}, {"seconds_between_starts": -1.0}, {"at_end": "repeat"}], ids=str)
def test_options(options: dict[str, object]):
    """Options of Audio out of their range are refused."""
    with pytest.raises(ConfigError, match="audio"):
        find_format("audio", options)
