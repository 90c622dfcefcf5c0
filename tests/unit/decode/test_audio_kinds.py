"""Decoded audio has the stored values, for any number of channels and bits and whatever surrounds the samples.
Files are written by FFmpeg or byte by byte here."""

from __future__ import annotations

import io
import struct

import av
import numpy as np
import pytest

from streamer.decode import AudioClip
from streamer.errors import StreamerError
from streamer.formats import Audio
from tests.formats.cases import samples_in
from tests.recordings import decoded, encoded, flac, sound, wav

SAMPLES = 1_000
SIZES = {"s8": 1, "u8": 1, "s16le": 2, "s16be": 2, "s24le": 3, "s24be": 3, "s32le": 4, "s32be": 4}
CONTAINERS = {
    "aiff": ("s8", "s16be", "s24be", "s32be"),
    "au": ("s8", "s16be", "s24be", "s32be"),
    "avi": ("u8", "s16le", "s24le", "s32le"),
    "caf": ("s8", "s16be", "s16le", "s24be", "s32le"),
    "voc": ("u8", "s16le"),
    "w64": ("u8", "s16le", "s24le", "s32le"),
}


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("channels", [1, 2])
def test_numbers_of_each_width_are_from_minus_1_to_1(container: str, channels: int):
    """Samples of every width, 8 bits signed or not, are floats from -1 to 1, in each container of FFmpeg."""
    for kind in CONTAINERS[container]:
        numbers, content = written(container, kind, channels)
        found = AudioClip()(content)["audio"]
        want = numbers / 2.0 ** (8 * SIZES[kind] - 1)
        assert found.dtype == np.float32
        assert np.array_equal(found, want.astype(np.float32)), (kind, channels)


def written(container: str, kind: str, channels: int) -> tuple[np.ndarray, bytes]:
    """Returns numbers [channels, n] of this kind, and the file that FFmpeg makes of them."""
    size = SIZES[kind]
    drawn = np.random.default_rng(size)
    numbers = drawn.integers(-(1 << 8 * size - 1), 1 << 8 * size - 1, (SAMPLES, channels))
    # FFmpeg takes them in the upper bits of the next wider type.
    own = "u8" if size == 1 else "s16" if size == 2 else "s32"
    wide = {"u8": 1, "s16": 2, "s32": 4}[own]
    stored = (numbers << 8 * (wide - size)) + (128 if own == "u8" else 0)
    layout = {1: "mono", 2: "stereo"}[channels]
    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        stream = out.add_stream(f"pcm_{kind}", rate=8_000, layout=layout)
        rows = stored.astype(f"{'u' if own == 'u8' else 'i'}{wide}").reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(rows, own, layout)
        frame.sample_rate, frame.pts = 8_000, 0
        out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return numbers.T, file.getvalue()


@pytest.mark.parametrize(("channels", "layout", "family"), [(8, "7.1", "1"), (16, "hexadecagonal", "255")])
def test_audio_of_8_channels_and_more_are_decoded(channels: int, layout: str, family: str):
    """Audio of 8 and 16 channels is decoded, whole and in windows; no plane is read behind the last one."""
    file = io.BytesIO()
    tones = np.concatenate([sound(0.5, 1, 48_000) // (1 + number) for number in range(channels)])
    with av.open(file, "w", format="ogg") as out:
        stream = out.add_stream("libopus", rate=48_000, layout=layout, options={"mapping_family": family})
        frame = av.AudioFrame.from_ndarray(tones.T.reshape(1, -1), "s16", stream.layout.name)
        frame.sample_rate, frame.pts = 48_000, 0
        out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    content = file.getvalue()
    whole = AudioClip()(content)["audio"]
    assert whole.shape == (channels, 24_000)
    # Each is a quieter one of the same tones, but for what the codec loses.
    assert np.abs(whole[0] - whole[1] * 2).max() < 0.2
    windows = samples_in(Audio(seconds=0.25), {"a.opus": content})
    assert np.array_equal(np.concatenate([each["audio"] for each in windows], 1), whole)


@pytest.mark.parametrize("samples", [4_000, 4_096, 4_097, 100])
def test_all_samples_of_alac_in_caf(samples: int):
    """ALAC in CAF is decoded to its last sample.
    Regression: FFmpeg leaves out as many of the last ones as the last packet lacks."""
    numbers = sound(1, 2, 8_000)[:, :samples]
    found = AudioClip()(encoded("alac", "caf", numbers, 8_000))["audio"]
    assert np.array_equal(found, (numbers / 2**15).astype(np.float32))


@pytest.mark.parametrize("container", ["wav", "au"])
def test_bits_that_ffmpeg_takes_in_another_order_are_refused(container: str):
    """G.726, which libsndfile calls G.721 and G.723, raises ValueError that says to convert it."""
    codec = "adpcm_g726" if container == "wav" else "adpcm_g726le"
    content = encoded(codec, container, sound(1, 1, 8_000), 8_000)
    with pytest.raises(ValueError, match=r"G\.721, G\.723 or G\.726.* convert it"):
        AudioClip()(content)


def test_a_change_of_the_rate_is_refused():
    """Audio whose rate changes, as joined MP3 files, raises ValueError; a window before the change is delivered."""
    joined = mp3(16_000) + mp3(24_000)
    assert AudioClip(0.5)(joined)["audio"].shape == (1, 8_000)
    with pytest.raises(ValueError, match="its packets are of 24000 Hz, its file says 16000"):
        AudioClip()(joined)
    # A container that `Audio` does not read.
    adts = aac(16_000) + aac(24_000)
    with pytest.raises(ValueError, match="its rate changes from 16000 to 24000 Hz within it"):
        AudioClip()(adts)


def test_a_change_of_the_channels_is_refused():
    """Audio whose number of channels changes raises ValueError with both numbers."""
    with pytest.raises(ValueError, match="its number of channels changes from 1 to 2 within it"):
        AudioClip()(aac(16_000) + aac(16_000, 2))


def mp3(rate: int) -> bytes:
    return encoded("libmp3lame", "mp3", sound(1, 1, rate), rate, bit_rate=32_000)


def aac(rate: int, channels: int = 1) -> bytes:
    return encoded("aac", "adts", sound(1, channels, rate), rate, bit_rate=32_000)


def riff(
    bits: int, stored: bytes, *, order: str = "<", magic: bytes = b"RIFF", length: int | None = None, **more: bytes
) -> bytes:
    """Makes a WAV of one channel; `before` and `behind` are chunks around its samples."""
    width = -(-bits // 8)
    form = struct.pack(f"{order}4sIHHIIHH", b"fmt ", 16, 1, 1, 8_000, 8_000 * width, width, bits)
    said = len(stored) if length is None else length
    body = b"WAVE" + more.get("before", b"") + form + struct.pack(f"{order}4sI", b"data", said) + stored
    body += more.get("behind", b"")
    return magic + struct.pack(f"{order}I", min(len(body), 0xFFFFFFFF)) + body


NUMBERS = np.random.default_rng(1).integers(-(1 << 30), 1 << 30, 4_000, np.int32)
LIST = struct.pack("<4sI", b"LIST", 1_000) + b"INFO" + bytes(range(249)) * 4


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("bits", [12, 16, 20, 24, 32])
def test_wav_of_each_width_and_order(bits: int, order: str):
    """WAV samples of 12 to 32 bits are decoded exactly, in either order of bytes.
    Numbers of fewer bits fill the upper ones of their bytes; RIFX has the other order."""
    width = -(-bits // 8)
    wide = NUMBERS >> 32 - bits << 32 - bits
    rows = wide.astype(">i4").view(np.uint8).reshape(-1, 4)[:, :width]
    stored = (rows if order == ">" else rows[:, ::-1]).tobytes()
    content = riff(bits, stored, order=order, magic=b"RIFF" if order == "<" else b"RIFX")
    want = (wide.astype(np.float64) / 2**31).astype(np.float32)
    assert np.array_equal(AudioClip()(content)["audio"][0], want)
    windows = samples_in(Audio(seconds=0.125), {"a.wav": content})
    assert np.array_equal(np.concatenate([each["audio"][0] for each in windows]), want)


def test_bw64_is_read():
    """BW64, whose lengths are in a chunk of their own as those of RF64, is decoded to its last sample."""
    stored = NUMBERS[:2_000].tobytes()
    sizes = struct.pack("<4sIQQQI", b"ds64", 28, 0, len(stored), 0, 0)
    content = riff(32, stored, magic=b"BW64", length=0xFFFFFFFF, before=sizes, behind=LIST)
    want = (NUMBERS[:2_000] / 2**31).astype(np.float32)
    assert np.array_equal(AudioClip()(content)["audio"][0], want)


@pytest.mark.parametrize("magic", [b"RIFF", b"RIFX"])
def test_chunks_behind_no_samples_are_no_audio(magic: bytes):
    """A data chunk of length 0 before other chunks has no samples.
    Before numbers it is that of a recorder that was killed, and has them."""
    order = "<" if magic == b"RIFF" else ">"
    behind = struct.pack(f"{order}4sI", b"LIST", 1_000) + LIST[8:]
    assert AudioClip()(riff(16, b"", order=order, magic=magic, behind=behind))["audio"].shape == (1, 0)
    numbers = NUMBERS[:500].tobytes()
    assert AudioClip()(riff(16, numbers, order=order, magic=magic, length=0))["audio"].shape == (1, 1_000)


FLAC = flac(3, 1)


def frames_in(content: bytes) -> list[bytes]:
    with av.open(io.BytesIO(content)) as file:
        return [bytes(packet) for packet in file.demux(file.streams.audio[0]) if packet.size]


def flac_head(least: int | None = None, most: int | None = None, total: int | None = None) -> bytes:
    """Returns the STREAMINFO of the file with other sizes of blocks and another number of samples."""
    head = bytearray(FLAC[:42])
    head[4] |= 0x80
    if least is not None:
        head[8:10] = least.to_bytes(2, "big")
    if most is not None:
        head[10:12] = most.to_bytes(2, "big")
    if total is not None:
        head[21:26] = (int.from_bytes(head[21:26], "big") >> 36 << 36 | total).to_bytes(5, "big")
    return bytes(head)


@pytest.mark.parametrize(
    "case",
    [
        "least 0",
        "least of the last",
        "all 0 but most",
        "tag",
        "later part",
        "later part of a known length",
        "one frame",
    ],
)
@pytest.mark.parametrize("chunk_bytes", [8_000, 8 << 20])
def test_flac_with_heads_of_other_writers(case: str, chunk_bytes: int):
    """FLAC files with heads of other writers have FFmpeg's samples, whole and in windows, wherever chunks begin."""
    frames = frames_in(FLAC)
    block = int.from_bytes(FLAC[8:10], "big")
    later = 3 * 8_000 - 2 * block
    content = {
        "least 0": lambda: flac_head(least=0) + b"".join(frames),
        "least of the last": lambda: flac_head(least=3 * 8_000 % block) + b"".join(frames),
        "all 0 but most": lambda: flac_head(least=0, total=0) + b"".join(frames),
        "tag": lambda: b"ID3\4\0\0\0\0\x40\0" + bytes(0x40 << 7) + FLAC,
        "later part": lambda: flac_head(total=0) + b"".join(frames[2:]),
        "later part of a known length": lambda: flac_head(total=later) + b"".join(frames[2:]),
        "one frame": lambda: flac_head(least=0, total=block) + frames[3],
    }[case]()
    want, rate = decoded(content)
    assert np.array_equal(AudioClip()(content)["audio"], want)
    windows = samples_in(Audio(seconds=0.1, at_end="pad"), {"a.flac": content}, chunk_bytes)
    joined = np.concatenate([each["audio"] for each in windows], 1)[:, : want.shape[1]]
    assert rate == 8_000
    assert np.array_equal(joined, want)


def test_a_tag_of_mp3_before_nothing_is_damaged():
    """A file with a tag of MP3 and no frame is an error that says so."""
    with pytest.raises(StreamerError, match="it has no frame of MP3"):
        samples_in(Audio(), {"a.flac": b"ID3\4\0\0\0\0\0\x14" + bytes(20) + b"none"})


def test_wav_of_8_bits_is_as_before():
    """WAV samples of 8 bits are numbers without a sign around 128."""
    numbers = np.arange(256, dtype=np.uint8)[None]
    assert np.array_equal(AudioClip()(wav(numbers))["audio"][0], (np.arange(256) - 128) / 128)
