"""`AudioClip`: whole audio files and windows of them, compared with a full decode by FFmpeg."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from streamer.decode import AudioClip, SampleDecoder
from streamer.errors import ConfigError, DecodeError
from streamer.formats.base import Field
from streamer.formats.reading import read_in_memory
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Source
from streamer.media.audio.flac import _crc8_table
from streamer.media.audio.index import read_recording
from streamer.media.audio.recode import record_of
from streamer.media.decode import audio
from streamer.media.decode import decoder as deadline
from streamer.media.decode.audio import WindowAudio
from tests.recordings import RATE, decoded, encoded, flac, m4a, mp3, opus, sound, wav


@pytest.mark.parametrize("make", [lambda: wav(sound(3, 2)), flac, mp3, opus, m4a])
def test_whole_files_and_windows_are_those_of_a_full_decode(make: Callable[[], bytes]):
    """AudioClip returns the samples of a full decode; a window has its length, with zeros behind the file's end."""
    content = make()
    wave, rate = decoded(content)
    if make is m4a:  # FFmpeg before that of PyAV 19 fills the last packet
        assert 0 <= wave.shape[1] - 3 * rate < 1024
        wave = wave[:, : 3 * rate]
    whole = AudioClip()(content)
    assert np.array_equal(whole["audio"], wave)
    assert (whole["sample_rate"], whole["start_seconds"]) == (rate, 0.0)
    for start, seconds in ((0, 0.5), (1.3, 0.7), (2.8, 1.0), (9.0, 0.2)):
        found = AudioClip(seconds, start)(content)["audio"]
        first, length = round(start * rate), round(seconds * rate)
        there = wave[:, first : first + length]
        assert found.shape == (len(wave), length)
        assert np.array_equal(found[:, : there.shape[1]], there)
        assert not found[:, there.shape[1] :].any()


def test_the_values_are_those_of_the_numbers():
    """Samples of 16 bits are divided by 32,768."""
    samples = np.array([[0, 1, -1, 32767, -32768]], "<i2")
    assert AudioClip()(wav(samples))["audio"].tolist() == (samples / 32768).tolist()


def test_a_rule_decodes_a_field():
    """A rule with AudioClip decodes the fields of its extension, and names sample and field of what is no audio."""
    decode = SampleDecoder({"flac": AudioClip(0.5)})
    sample = decode("a", [Field("flac", memoryview(flac())), Field("txt", memoryview(b"hello"))])
    assert sample["flac"]["audio"].shape == (2, RATE // 2)
    assert sample["txt"] == "hello"
    with pytest.raises(DecodeError, match=r"sample 'a': field 'flac' .* is refused by AudioClip"):
        decode("a", [Field("flac", memoryview(b"no audio"))])


def test_audio_of_an_unknown_codec_is_refused():
    """Audio of an unknown codec raises DecodeError.
    PyAV has no decoder for a WAV with the tag of an extended head, 0xFFFE, that lacks one."""
    content = wav(sound(1))
    content = content[:20] + b"\xfe\xff" + content[22:]
    with pytest.raises(DecodeError, match=r"sample 'a': field 'wav' .*no decoder of its audio: its head is damaged"):
        SampleDecoder({"wav": AudioClip()})("a", [Field("wav", memoryview(content))])


def test_decoding_has_a_deadline_and_a_bound_of_memory(monkeypatch: pytest.MonkeyPatch):
    """Decoding of audio ends with an error at its limits of memory and CPU time."""
    monkeypatch.setattr(audio, "_MAX_WAVE_BYTES", 1 << 20)
    content = encoded("pcm_s16be", "aiff", np.zeros((1, 1 << 20), "<i2"))
    silence = encoded("flac", "flac", np.zeros((1, 1 << 20), "<i2"))
    assert len(silence) < 40_000
    for each in (content, silence):
        with pytest.raises(ValueError, match="its audio takes more than 0 GiB when it is decoded: cut it into files"):
            AudioClip()(each)
    monkeypatch.setattr(deadline, "MAX_SECONDS", 0.0)
    monkeypatch.setattr(deadline, "_SECONDS_PER_MB", 0.0)
    for each in (content, flac()):
        with pytest.raises(ValueError, match="decoding takes more than 0 s of CPU"):
            AudioClip()(each)


def test_a_flac_whose_blocks_of_metadata_cannot_be_followed_is_refused():
    """A FLAC file whose blocks of metadata cannot be followed raises ValueError, where a player finds no samples."""
    content = bytearray(flac())
    behind_info = 4 + 4 + 34
    content[behind_info + 1 : behind_info + 4] = (16).to_bytes(3, "big")
    content[behind_info + 20 : behind_info + 24] = b"\xff\xff\xff\xff"
    with pytest.raises(ValueError, match="no packet of its audio can be decoded"):
        AudioClip()(bytes(content))


def test_a_flac_of_larger_blocks_than_there_are_is_refused():
    """A FLAC file with blocks of 65,536 samples, which STREAMINFO cannot state, raises ValueError."""
    content = bytearray(flac())
    content[8:12] = bytes(4)
    at = content.index(b"\xff\xf8")
    content[at + 2] = 0x70 | content[at + 2] & 15
    head = bytes(content[at : at + 5]) + b"\xff\xff"
    table = _crc8_table()
    crc = 0
    for byte in head:
        crc = int(table[crc ^ byte])
    content[at : at + 8] = head + bytes([crc])
    with pytest.raises(ValueError, match=r"there are 0 to 65536|Invalid data"):
        AudioClip()(bytes(content))


def test_another_rate_than_the_file_says_is_refused():
    """Packets of another rate than the file states raise ValueError, as of AAC at twice its stated rate."""
    content = memoryview(flac())
    recording = read_in_memory(read_recording(Source(ObjectRecord("", len(content), ""))), content)
    other = msgspec.structs.replace(recording, audio=msgspec.structs.replace(recording.audio, rate=2 * RATE))
    with pytest.raises(ValueError, match="its packets are of 8000 Hz, its file says 16000"):
        WindowAudio().decode(memoryview(record_of(other, content, 0, RATE, RATE)))


def test_without_pyav_only_wav_is_decoded(monkeypatch: pytest.MonkeyPatch):
    """Without PyAV only WAV is decoded, and the error for other audio says what to install."""
    content = flac()
    monkeypatch.setattr("streamer.base.extras.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "av", None)
    assert AudioClip()(wav(sound(1)))["audio"].shape == (1, RATE)
    with pytest.raises(ConfigError, match=r"streamer-data\[video\]"):
        AudioClip(seconds=0.1)(content)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seconds": 0}, "seconds=0 is not a positive number, finite and in seconds"),
        ({"seconds": math.inf}, "seconds=inf is not a positive number"),
        ({"seconds": "1"}, "seconds='1' is not a positive number"),
        ({"seconds": 1, "start": -1}, "start=-1 is not a time from 0 on"),
        ({"seconds": 1, "start": math.inf}, "start=inf is not a time from 0 on"),
        ({"start": "random"}, "a whole file does not begin at random"),
        ({"start": "end"}, "start='end' is neither a time nor 'random'"),
    ],
)
def test_options_are_checked(options: dict[str, object], said: str):
    """Wrong options of AudioClip raise ConfigError when the decoder is made."""
    with pytest.raises(ConfigError, match=f"AudioClip: {said}"):
        AudioClip(**options)
