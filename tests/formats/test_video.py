"""Videos meet the contract of the formats; frames compared with a full decode by PyAV; and which videos are refused."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamer.decode import Frames
from streamer.errors import ConfigError, ManifestError, RecodeError
from streamer.formats.base import Block
from streamer.indexing.container_rows import Container, index_container
from streamer.media.containers.records import read_head
from streamer.media.video.format import Video
from tests.formats.cases import Case, Found, MemoryStore, block_bytes, built, facts_of, find, recode
from tests.formats.contract import FormatContract, samples_of
from tests.formats.summary import KEY, summary
from tests.recordings import m4a
from tests.videos import decoded, joined, made, number_in, video, without_times


@functools.cache
def shown(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns what `decoded` says of a video of `KINDS`."""
    return decoded(made(name))


def text(seconds: float) -> str:
    return f"{seconds:.3f}".rstrip("0").rstrip(".")


def expected(name: str, chosen: np.ndarray) -> Mapping[str, object]:
    """Returns the sample of these frames."""
    frames, pts, durations = shown(name)
    times = pts[chosen]
    return {
        KEY: f"{name}#t={text(times.min())},{text(times.max())}",
        "frames": summary(frames[chosen]),
        "pts_seconds": summary(times),
        "duration_seconds": summary(durations[chosen]),
    }


def case_of(name: str, chosen: Video, firsts: range, every: int, count: int, title: str) -> Case:
    samples = [expected(title, first + np.arange(count) * every) for first in firsts]
    return Case(name, chosen, {title: made(title)}, samples)


SPREAD = Video(2, segments="rows.jsonl", start="spread")
COLUMNS = frozenset({"caption", "number"})


def case_of_segments(title: str, segments: Sequence[tuple[int, int]]) -> Case:
    """Makes segments of these frames, of 30 a second; a clip is a quarter before and behind the middle."""
    rows, samples = [], []
    for number, (first, stop) in enumerate(segments):
        more = {"caption": f"row {number}", "number": number}
        rows.append(json.dumps({"path": title, "start": first / 30, "end": stop / 30, **more}))
        quarters = np.array([3 * first + stop, first + 3 * stop]) // 4
        samples.append({**expected(title, quarters), **more})
    return Case("spread", SPREAD, {title: made(title), "rows.jsonl": "\n".join(rows).encode()}, samples, copied=COLUMNS)


class TestVideo(FormatContract):
    @classmethod
    def cases(cls) -> list[Case]:
        every = Video(4, num_indices_between_frames=2, num_indices_between_clip_starts=5)
        return [
            case_of("clips", every, range(0, 84, 5), 2, 4, "open_gop.mp4"),
            case_of("frames", Video(1, num_indices_between_clip_starts=3), range(0, 90, 3), 1, 1, "b_frames.mp4"),
            case_of("sound", Video(8), range(0, 83, 8), 1, 8, "sound.mp4"),
            case_of("fragments", Video(8), range(0, 83, 8), 1, 8, "fragments.mp4"),
            case_of("hevc", Video(6, num_indices_between_clip_starts=4), range(0, 55, 4), 1, 6, "hevc.mp4"),
            case_of("matroska", Video(8), range(0, 53, 8), 1, 8, "b_frames.mkv"),
            # A GOP has 20 frames: the first sample needs nothing of the second GOP.
            case_of_segments("hevc.mp4", [(0, 60), (2, 14), *((first, first + 8) for first in range(10, 40, 5))]),
        ]


@pytest.mark.parametrize("title", ["b_frames.mp4", "variable.mp4", "fragments.mp4", "b_frames.mkv"])
@pytest.mark.parametrize(("between", "step"), [(0.1, 0.37), (0.05, 0.1), (0.21, None)])
def test_clips_by_times(title: str, between: float, step: float | None):
    """Clips by seconds have the frames that are shown at these times, as a loop over a full decode finds them."""
    chosen = Video(4, seconds_between_frames=between, seconds_between_clip_starts=step)
    _, pts, durations = shown(title)
    # Of decimals, and a little behind the times at which frames begin.
    rounding, end = 1e-6, pts[-1] + durations[-1]

    def shown_at(seconds: float) -> int:
        return max(number for number, time in enumerate(pts) if time <= seconds + rounding)

    begins = (pts[0] + number * (step or 4 * between) for number in range(1000))
    firsts = sorted({shown_at(begin) for begin in begins if begin < end})
    clips = [
        [shown_at(pts[first] + place * between) for place in range(4)]
        for first in firsts
        if pts[first] + 3 * between < end - rounding
    ]
    case = Case("times", chosen, {title: made(title)}, [expected(title, np.array(clip)) for clip in clips])
    assert samples_of(case) == case.samples


def blocks_of(found: Found) -> list[Block]:
    return [item for _, items in found.items for item in items]


def test_neighbouring_clips_share_their_bytes():
    """A chunk of clips that begin at each frame has each packet once, and hardly more bytes than the video."""
    content = made("b_frames.mp4")
    [block] = blocks_of(find(Video(8, num_indices_between_clip_starts=1), {"x.mp4": content}))
    assert block.samples == 83
    assert sum(stop - start for start, stop in block.ranges) <= len(content)
    records = (
        Video()
        .recoder(facts_of(find(Video(), {})))
        .recode(memoryview(block_bytes(block, content)), block.samples, block.hint)
    )
    kept, alone = sum(map(len, records.shared_parts)), recode(Video(), Found(None), block, block_bytes(block, content))
    assert kept < 1.2 * block.fetch_bytes
    assert sum(map(len, alone)) > 5 * kept
    assert sum(map(len, records.parts)) + kept <= block.record_bytes
    assert len(records.shared_parts) == block.parts


def test_blocks_overlap_by_the_end_of_a_clip():
    """With small chunks a video is several blocks, which together fetch less than twice its bytes."""
    content = made("b_frames.mp4")
    blocks = blocks_of(find(Video(8), {"x.mp4": content}, 4 << 10))
    assert len(blocks) >= 2
    assert sum(block.samples for block in blocks) == 11
    assert sum(block.fetch_bytes for block in blocks) < 2 * len(content)


def test_gops_between_the_frames_of_a_clip_are_not_needed():
    """A clip's record has the GOPs of its frames alone, and not those between them."""
    case = case_of_segments("open_gop.mp4", [(0, 90)])
    [block] = blocks_of(find(SPREAD, case.objects))
    [dense] = blocks_of(find(Video(90), case.objects))
    assert block.samples == dense.samples == 1
    assert block.record_bytes < 0.4 * dense.record_bytes
    assert samples_of(case) == case.samples


def of_ten(frames: int) -> bytes:
    """Returns a video of ten frames a second."""
    return video("mpeg4", frames, rate=10)


async def test_videos_that_are_shorter_than_a_clip(tmp_path: Path):
    """The error for videos that are all shorter than a clip has the longest one; one that is long enough is read."""
    videos = {"a.mp4": of_ten(5), "b.mp4": of_ten(9), "c.mp4": of_ten(7)}

    async def elsewhere(containers: Sequence[Container], chosen: Video) -> AsyncIterator[tuple[int, object]]:
        for place, container in enumerate(containers):
            yield (
                place,
                await index_container(
                    container, chosen, MemoryStore(videos), ahead=0, on_chunk=None, on_read=lambda need: None
                ),
            )

    for options in ({}, {"elsewhere": elsewhere}):
        with pytest.raises(
            ManifestError,
            match=r"3 objects below .* have no sample .*'video'.*: the longest has 9 frames, clips have 10; at_end=",
        ):
            await built(Video(10, stream_index=0), MemoryStore(videos), tmp_path, **options)
        assert (await built(Video(9), MemoryStore(videos), tmp_path, **options)).samples == 1
    assert (await built(Video(10, at_end="repeat_last"), MemoryStore(videos), tmp_path)).samples == 3


async def test_rows_that_are_shorter_than_a_clip(tmp_path: Path):
    """A note counts the rows of segments that are shorter than a clip; without any there is no note."""
    segments = [(0, 0.4), (0.1, 0.3), (0.2, 0.9), (0.5, 0.6)]
    rows = [json.dumps({"path": "a.mp4", "start": start, "end": end}) for start, end in segments]
    store = MemoryStore({"a.mp4": of_ten(9), "rows.jsonl": "\n".join(rows).encode()})
    notes: list[str] = []
    assert (await built(Video(4, segments="rows.jsonl"), store, tmp_path, on_note=notes.append)).samples == 2
    assert [note.split(" (")[0] for note in notes] == ["2 of 4 rows have no sample in them"]
    assert "num_frames_per_clip=4" in notes[0]
    assert (await built(Video(1, segments="rows.jsonl"), store, tmp_path, on_note=notes.append)).samples == 4
    assert len(notes) == 1


@pytest.mark.parametrize("entries", [1, 2])
async def test_clips_over_a_change_of_parameters(entries: int, tmp_path: Path):
    """Clips over a change of codec parameters are left out and counted, or exact where packets have parameters."""
    options = [
        {"preset": "veryfast", "g": "24", "x264-params": "repeat-headers=1"},
        {"preset": "ultrafast", "g": "30", "x264-params": "repeat-headers=1:keyint=30"},
    ]
    one, two = (
        video("libx264", 44, options=each, shown=range(n, n + 44)) for n, each in zip((0, 44), options, strict=True)
    )
    content, notes = joined(one, two, entries=entries), list[str]()
    manifest = await built(Video(8), MemoryStore({"a.mp4": content}), tmp_path, on_note=notes.append)
    left_out = [40] if entries == 2 else []
    assert manifest.samples == 11 - len(left_out)
    assert notes == ["samples over a change of codec parameters, which are left out: 1"][: len(left_out)]
    found = find(Video(8), {"a.mp4": content})
    records = [
        memoryview(record)
        for each in blocks_of(found)
        for record in recode(Video(8), found, each, block_bytes(each, content))
    ]
    frames = [[number_in(np.moveaxis(frame, 0, -1)) for frame in Frames().decode(record)] for record in records]
    assert frames == [list(range(first, first + 8)) for first in range(0, 88, 8) if first not in left_out]


async def test_videos_that_are_not_read_are_left_out(tmp_path: Path):
    """Damaged videos and those of another kind are left out with a note each; if all are, the first is an error."""
    bad = {
        "cut.mp4": made("b_frames.mp4")[:3000],
        "page.mp4": b"<!DOCTYPE html>" * 40,
        "secret.mp4": made("b_frames.mp4").replace(b"avc1\0\0\0\0", b"encv\0\0\0\0"),
        "sound.mp4": m4a(),
    }
    notes: list[str] = []
    videos = MemoryStore({"a.mp4": made("b_frames.mp4"), **bad})
    assert (await built(Video(90), videos, tmp_path, on_damage=notes.append)).samples == 1
    assert notes[0] == "4 of 5 objects cannot be read and are left out, with all their samples"
    told = [re.fullmatch(r"left out: .*/(\w+)\.mp4: (.*) \(at byte .*", note).groups() for note in notes[1:]]
    assert [(name, reason.split(":")[0]) for name, reason in told] == [
        ("cut", "cut off"),
        ("page", "does not begin as mp4 and mov files do, but with 'CTYP'"),
        ("secret", "is encrypted, and streamer has no keys"),
        ("sound", "has no track of kind 'vide'"),
    ]
    with pytest.raises(ManifestError, match=r"cut\.mp4 is damaged"):
        await built(Video(90), MemoryStore(bad), tmp_path, on_damage=notes.append)


def test_videos_that_are_not_read():
    """Videos that are cut off, of another kind or without key frames are refused with the reason."""
    with pytest.raises(ManifestError, match=r"a\.mp4 is damaged: cut off: .*index \(moov\) is missing.*damaged='skip'"):
        find(Video(), {"a.mp4": made("b_frames.mp4")[:3000]})
    with pytest.raises(ManifestError, match=r"a\.mp4 does not begin as mp4 and mov files do"):
        find(Video(), {"a.mp4": b"RIFF" * 100})
    content = made("refresh.mp4")
    found = find(Video(), {"a.mp4": content})
    with pytest.raises(RecodeError, match="it has no whole key frames, but intra refresh over"):
        recode(Video(), found, blocks_of(found)[0], block_bytes(blocks_of(found)[0], content))
    with pytest.raises(ConfigError, match="seconds_between_frames and num_indices_between_frames exclude each other"):
        Video(seconds_between_frames=0.1, num_indices_between_frames=2)


def read_without_times(content: bytes, chosen: Video, chunk_bytes: int) -> tuple[int, int]:
    """Reads all clips of an mp4 that says only when frames are decoded, 30 a second and in their order.

    Checks that those which are delivered have the frames of their times; returns how many were, and how many refused.
    """
    found = find(chosen, {"x.mp4": content}, chunk_bytes)
    delivered = refused = 0
    for block in blocks_of(found):
        try:
            records = recode(chosen, found, block, block_bytes(block, content))
        except RecodeError as error:
            if not re.search(r"B-frames, .* and no times at which they are shown \(no ctts\)", str(error)):
                raise
            refused += block.samples
            continue
        for record in records:
            head, _ = read_head(memoryview(record))
            places = head.draw(None)[0] * 30 // head.timescale
            frames = [number_in(np.moveaxis(frame, 0, -1)) for frame in Frames()(record)]
            assert frames == places.tolist()
            delivered += 1
    return delivered, refused


@pytest.mark.parametrize("name", ["b_frames.mp4", "open_gop.mp4", "hevc.mp4", "mpeg4.mp4"])
@pytest.mark.parametrize("frames", [1, 2, 8])
@pytest.mark.parametrize("chunk_bytes", [1 << 10, 1 << 20])
def test_videos_that_do_not_say_when_pictures_are_shown_are_refused(name: str, frames: int, chunk_bytes: int):
    """Videos with B-frames without times of display are refused, because frames would come in the order stored."""
    delivered, refused = read_without_times(without_times(made(name)), Video(frames), chunk_bytes)
    assert refused
    assert not delivered


_ENCODERS = {
    "libx264": {"preset": "veryfast", "bf": "{b}", "g": "{gop}"},
    "libx265": {"preset": "ultrafast", "x265-params": "bframes={b}:keyint={gop}:log-level=none:pools=1"},
    **{name: {"bf": "{b}", "g": "{gop}"} for name in ("mpeg4", "mpeg2video", "mpeg1video")},
}


@settings(max_examples=12)
@given(
    codec=st.sampled_from(sorted(_ENCODERS)),
    b_frames=st.integers(0, 3),
    gop=st.sampled_from([1, 4, 9, 60]),
    frames=st.integers(1, 4),
    chunk_bytes=st.sampled_from([1 << 8, 1 << 12, 1 << 20]),
)
def test_frames_without_times_of_showing_are_those_of_a_full_decode(
    codec: str, b_frames: int, gop: int, frames: int, chunk_bytes: int
):
    """Clips of videos without times of display are exact, and refused if and only if frames are reordered."""
    options = {name: value.format(b=b_frames, gop=gop) for name, value in _ENCODERS[codec].items()}
    content = without_times(video(codec, 14, options=options))
    delivered, refused = read_without_times(content, Video(frames), chunk_bytes)
    assert delivered + refused == 14 // frames
    is_reordered = b_frames > 0 and gop > 1
    assert bool(refused) == is_reordered
    assert bool(delivered) != is_reordered


@pytest.mark.parametrize("frames", [1, 2, 3])
@pytest.mark.parametrize(
    ("types", "delivered"),
    [("IPPPPPPPPPPPIPPPPPPPPPPP", 24), ("IPPPPPPPPPPPIPBPBPBPBPBP", 12), ("IPPPPPPPPPPBPPIPPPPPPPPP", 10)],
)
def test_gops_without_b_frames_are_read(types: str, delivered: int, frames: int):
    """GOPs without B-frames are read in a video without times of display, by the order counts of slices."""
    options = {"preset": "veryfast", "bf": "3", "g": "250", "x264-params": "b-adapt=0"}
    content = without_times(video("libx264", len(types), options=options, types=types))
    found, refused = read_without_times(content, Video(frames), 1 << 8)
    assert found * frames in range(delivered - frames + 1, delivered + 1)
    assert found + refused == len(types) // frames


def test_a_video_of_more_frames_than_ticks():
    """Frames of a video with more frames than ticks come in their order, parts of a tick apart."""
    name, options = "fast.mkv", {"preset": "veryfast", "bf": "0", "g": "10"}
    content = video("libx264", 40, name=name, rate=2_500, options=options)
    found = find(Video(8), {name: content})
    [block] = blocks_of(found)
    records = recode(Video(8), found, block, block_bytes(block, content))
    numbers = [number_in(frame) for record in records for frame in np.moveaxis(Frames()(record), 1, -1)]
    assert numbers == list(range(40))
    pts = np.concatenate([read_head(memoryview(record))[0].draw(None)[0] for record in records])
    assert (np.diff(pts) > 0).all()
    assert read_head(memoryview(records[0]))[0].timescale == 3_000
