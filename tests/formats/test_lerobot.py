"""Datasets of LeRobot meet the contract of the formats; layouts, windows, options, depth, and which are refused."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import structs

from streamer.errors import ConfigError, DecodeError, ManifestError, RecodeError
from streamer.formats import LeRobot
from streamer.formats.base import Block, ObjectRecord
from streamer.media.containers.clips import FrameTable
from streamer.media.containers.entries import TrackCodec
from streamer.media.containers.tables import Packets
from streamer.media.lerobot.episodes import CameraVideo
from streamer.media.lerobot.info import TOLERANCE
from tests.formats.cases import Case, block_bytes, contents_of, facts_of, find, opened, recode, samples_in
from tests.formats.contract import FormatContract, samples_of
from tests.formats.summary import summary
from tests.lerobot_sets import CAMERAS, LENGTHS, lerobot_set, samples_of_set
from tests.videos import number_in, video, without_times

TOP, WRIST = CAMERAS
# Files of the last two episodes.
OF_OTHERS = ("data/chunk-000/file-001.parquet", f"videos/{TOP}/chunk-000/file-001.mp4")
WINDOWS = {TOP: [-0.3, -0.1, 0.0, 0.2], "action": [0.0, 0.1, 0.2, 0.3, 0.4], "next.done": [0.1], WRIST: [-0.5]}


def case_of(version: str, groups: bool = True) -> Case:
    samples = [{name: summary(value) for name, value in sample.items()} for sample in samples_of_set(version, WINDOWS)]
    chosen = LeRobot(delta_timestamps=WINDOWS)
    return Case(version, chosen, lerobot_set(version, groups), samples, copied=frozenset(CAMERAS))


class TestLeRobot(FormatContract):
    @classmethod
    def cases(cls) -> list[Case]:
        """Returns a set of two episodes, one file of rows; each damaged set is read as a whole."""
        whole, episodes = case_of("v3.0"), (0, 1)
        chosen = structs.replace(whole.format, episodes=episodes)
        objects = {name: content for name, content in whole.objects.items() if name not in OF_OTHERS}
        return [replace(whole, format=chosen, objects=objects, samples=whole.samples[: sum(LENGTHS[:2])])]


@pytest.mark.parametrize(("version", "groups"), [("v3.0", True), ("v3.0", False), ("v2.1", True)])
def test_layouts(version: str, groups: bool):
    """LeRobot sets of v3.0, with one or more episodes in a row group, and of v2.1 give the same samples."""
    case = case_of(version, groups)
    assert samples_of(case) == case.samples


def test_pictures_have_the_numbers_of_their_rows():
    """The expected frames of this module's sets, fully decoded, have the numbers of their rows."""
    for row, sample in enumerate(samples_of_set("v3.0", {})):
        assert [number_in(sample[camera].transpose(1, 2, 0)) for camera in CAMERAS] == [row, row + 500]


def test_blocks_of_some_rows():
    """Small chunks cut episodes of LeRobot into blocks, and windows reach over the ends of blocks."""
    case = case_of("v3.0")
    found = find(case.format, case.objects, 1500)
    blocks = [item for _, items in found.items for item in items if isinstance(item, Block)]
    assert len(blocks) > 2 * len(LENGTHS)
    opener = case.format.opener(facts_of(found))
    contents = contents_of(case.format, found, case.objects)
    assert [opened(case, opener, memoryview(content), name) for content, name in contents] == case.samples


def test_chosen_episodes_and_cameras():
    """`episodes=` keeps these episodes' rows alone, and `cameras=` these cameras' fields."""
    chosen = Case("", LeRobot(episodes=(3, 1), cameras=(WRIST,)), lerobot_set(), [])
    expected = [
        {name: summary(value) for name, value in sample.items() if name != TOP}
        for sample in samples_of_set("v3.0", {})
        if sample["episode_index"] in {1, 3}
    ]
    assert samples_of(chosen) == expected
    blind = samples_of(Case("", LeRobot(cameras=()), lerobot_set(), []))
    assert [sample.keys() & set(CAMERAS) for sample in blind] == [set()] * sum(LENGTHS)


def reencoded(name: str, content: bytes, codec: str, options: Mapping[str, str]) -> bytes:
    """Returns a video of the set with the same numbers, that says only when its frames are decoded."""
    if not name.endswith(".mp4"):
        return content
    with av.open(io.BytesIO(content)) as box:
        numbers = [number_in(frame.to_ndarray(format="rgb24")) for frame in box.decode(video=0)]
    return without_times(video(codec, len(numbers), rate=10, options=options, shown=numbers))


_X265 = {"preset": "ultrafast", "x265-params": "bframes=2:log-level=none:pools=1"}


@pytest.mark.parametrize(
    ("codec", "options"), [("libx264", {"bf": "2"}), ("libx265", _X265), ("mpeg4", {"bf": "2"}), ("mpeg4", {"bf": "0"})]
)
@pytest.mark.parametrize("windows", [{}, {TOP: [-0.1, 0.0]}])
def test_videos_that_do_not_say_when_frames_are_shown(
    codec: str, options: Mapping[str, str], windows: Mapping[str, list[float]]
):
    """Videos without times of display are refused where frames are reordered; else each row has its frame."""
    objects = {name: reencoded(name, content, codec, options) for name, content in lerobot_set().items()}
    chosen = LeRobot(delta_timestamps=windows, cameras=(TOP,))
    if options.get("bf") == "0":
        for sample in samples_in(chosen, objects, 300):
            pictures = sample[TOP].reshape(-1, *sample[TOP].shape[-3:])
            assert number_in(np.moveaxis(pictures[-1], 0, -1)) == sample["index"]
        return
    found = find(chosen, objects, 300)
    blocks = [item for _, items in found.items for item in items if isinstance(item, Block)]
    assert len(blocks) > len(LENGTHS)
    for block in blocks:
        with pytest.raises(RecodeError, match="no times at which they are shown"):
            recode(chosen, found, block, block_bytes(block, b"", objects))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_nearest_frames(count: int):
    """A camera's frame is found up to 0.1 ms from its time; a time further away is refused."""
    numbers = np.arange(count)
    packets = Packets(*([numbers] * 7))
    video = CameraVideo(
        ObjectRecord("a.mp4", 0, ""),
        packets,
        FrameTable(numbers, 100 * numbers, numbers, numbers),
        TrackCodec(""),
        1000,
    )
    for late in (-0.00009, 0.0, 0.00009):
        assert video.frames_at(numbers / 10 + late, 0, TOLERANCE).tolist() == numbers.tolist()
    for seconds in (-0.0002, 0.05, count / 10):
        with pytest.raises(ManifestError, match=r"a\.mp4 has no frame at .* where episode 3 has row 1"):
            video.frames_at(np.array([0.0, seconds]), 3, TOLERANCE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delta_timestamps": {"x": [0.0]}}, "no feature 'x'"),
        ({"delta_timestamps": {"action": [0.05]}}, "multiples of 1/10 s"),
        ({"delta_timestamps": {"action": [0.0, 1e300]}}, "multiples of 1/10 s"),
        ({"delta_timestamps": {"action": []}}, "has nothing"),
        ({"cameras": ("x",)}, "there are observation.images.top"),
        ({"episodes": (9,)}, "there are 4 episodes"),
    ],
)
def test_options_that_do_not_fit(options: Mapping[str, object], message: str):
    """Options of LeRobot that a set does not fit are refused with what there is."""
    with pytest.raises(ConfigError, match=message):
        find(LeRobot(**options), lerobot_set())


Edit = Callable[[dict[str, bytes]], object]
EPISODES, DATA = "meta/episodes/chunk-000/file-000.parquet", "data/chunk-000/file-000.parquet"
INFO, TASKS = "meta/info.json", "meta/tasks.parquet"


def info(**changes: object) -> Edit:
    return lambda objects: objects.update({INFO: json.dumps(json.loads(objects[INFO]) | changes).encode()})


def column(file: str, name: str, change: Callable[[list[object]], list[object]] | None) -> Edit:
    def edit(objects: dict[str, bytes]) -> None:
        table = pq.read_table(io.BytesIO(objects[file]))
        number = table.schema.get_field_index(name)
        values = table[name].to_pylist()
        table = table.remove_column(number)
        if change is not None:
            table = table.add_column(number, name, pa.array(change(values)))
        pq.write_table(table, content := io.BytesIO())
        objects[file] = content.getvalue()

    return edit


def first(value: object) -> Callable[[list[object]], list[object]]:
    return lambda values: [value, *values[1:]]


@pytest.mark.parametrize(
    ("edit", "error", "message"),
    [
        (info(codebase_version="v1.6"), ManifestError, "v3 and v2 are read"),
        (info(video_path="{secret}.mp4"), ManifestError, "secret"),
        (info(features={}), ManifestError, "lacks the features episode_index, "),
        (info(features={"x": {"dtype": "float32", "shape": [1]}}), ManifestError, "lacks the features"),
        (lambda objects: objects.pop(DATA), ManifestError, "does not exist"),
        (lambda objects: objects.pop(INFO), ManifestError, "0 of the files are meta/info.json"),
        (lambda objects: objects.pop(TASKS), ManifestError, "tasks is missing"),
        (lambda objects: objects.update({EPISODES: b"PAR1"}), ManifestError, "not -1 rows of Parquet"),
        (lambda objects: objects.update({EPISODES: b""}), ManifestError, r"file-000\.parquet is empty: write it again"),
        (lambda objects: objects.update({TASKS: b""}), ManifestError, r"meta/tasks\.parquet is empty: write it again"),
        (lambda objects: objects.update({INFO: b"\xff"}), ManifestError, "is not the info.json of LeRobot"),
        (column(DATA, "action", None), ManifestError, "columns=action: no such field"),
        (
            column(DATA, "action", lambda values: [["x"]] * 20),
            ManifestError,
            "has a column 'action.list.element' that is .*text",
        ),
        (column(DATA, "frame_index", lambda values: ["x"] * 20), ManifestError, "no column of numbers frame_index"),
        (column(TASKS, "task", None), ManifestError, "meta/tasks is not as LeRobot writes it"),
        (column(TASKS, "task_index", first(2)), RecodeError, r"rows of the tasks \[0\]"),
        (column(EPISODES, "length", None), ManifestError, "KeyError: 'length'"),
        (column(EPISODES, "length", first(None)), ManifestError, "TypeError"),
        (column(EPISODES, "length", first(-1)), ManifestError, "the shortest of -1"),
        (column(EPISODES, "length", first(10)), ManifestError, "has 20 rows.* have 21"),
        (column(EPISODES, "episode_index", first(2)), ManifestError, "4 rows with 3 numbers"),
        (
            column(EPISODES, f"videos/{TOP}/from_timestamp", lambda values: [0.0, 0.93, *values[2:]]),
            ManifestError,
            "no frame at 0.9300 s, where episode 1 has row 0: the nearest is at 0.9000 s",
        ),
        (column(EPISODES, f"videos/{TOP}/from_timestamp", first(float("nan"))), ManifestError, "no frame at nan s"),
        (column(DATA, "frame_index", first(1)), RecodeError, "frame_index"),
        (column(DATA, "episode_index", first(1)), RecodeError, "of episode 0 at 10 frames a second are others"),
    ],
)
def test_sets_that_contradict_themselves(edit: Edit, error: type[Exception], message: str):
    """A LeRobot set that contradicts itself is refused with what is wrong, and where."""
    objects = dict(lerobot_set())
    edit(objects)
    with pytest.raises(error, match=re.compile(message, re.DOTALL)):
        samples_of(Case("", LeRobot(), objects, []))


DEPTHS = {"is_depth_map": True, "video.depth_min": 0.05, "video.depth_max": 8.0, "video.shift": 3.5}


def of_depth(codes: np.ndarray, **said: object) -> dict[str, bytes]:
    """Returns the set with a video of depth in place of the first camera's: a picture of each row's codes."""
    objects = dict(lerobot_set())
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as box:
        options = {"x265-params": "lossless=1:log-level=none:pools=1", "tag": "hvc1"}
        stream = box.add_stream("libx265", rate=10, options=options)
        stream.height, stream.width = codes.shape[1:]
        stream.pix_fmt = "gray12le"
        for number, each in enumerate(codes):
            frame = av.VideoFrame(codes.shape[2], codes.shape[1], "gray12le")
            rows = np.zeros((codes.shape[1], frame.planes[0].line_size // 2), "<u2")
            rows[:, : codes.shape[2]] = each
            frame.planes[0].update(rows.tobytes())
            frame.pts, frame.time_base = number, Fraction(1, 10)
            box.mux(stream.encode(frame))
        box.mux(stream.encode(None))
    told = json.loads(objects[INFO])
    told["features"][TOP] |= {"info": {**DEPTHS, **said}}
    objects[INFO] = json.dumps(told).encode()
    for name in objects:
        if TOP in name:
            objects[name] = file.getvalue()
    return objects


@pytest.mark.parametrize("use_log", [True, False])
def test_depth_is_in_millimetres(use_log: bool):
    """Frames of depth are millimetres, as lerobot computes them from 12 bits, linear or logarithmic."""
    codes = np.random.default_rng(0).integers(0, 4096, (sum(LENGTHS), 24, 40)).astype("<u2")
    codes[0, 0, :2] = 0, 4095
    objects = of_depth(codes, **{"video.use_log": use_log})
    found = samples_in(LeRobot(episodes=(0,), cameras=(TOP,)), objects)
    low, high = (np.log(3.55), np.log(11.5)) if use_log else (0.05, 8.0)
    metres = codes[: LENGTHS[0]] / 4095 * (high - low) + low
    want = 1000 * (np.exp(metres) - 3.5 if use_log else metres)
    depths = np.stack([each[TOP] for each in found])
    assert (depths.dtype, depths.shape) == (np.float32, (LENGTHS[0], 1, 24, 40))
    assert np.array_equal(depths, np.rint(depths))
    assert np.abs(depths[:, 0] - want).max() < 0.51
    assert (depths[0, 0, 0, :2] == [50, 8000]).all()
    windows = samples_in(LeRobot({TOP: [-0.1, 0.0]}, episodes=(0,), cameras=(TOP,)), objects)
    assert np.array_equal(windows[3][TOP], depths[2:4])


def test_depth_that_cannot_be_told_is_refused():
    """Cameras of depth with impossible distances, other bits or no mark are refused with the way to leave them out."""
    codes = np.zeros((sum(LENGTHS), 16, 16), "<u2")
    with pytest.raises(ManifestError, match=r"camera 'observation.images.top' of depth.*LeRobot\(cameras=...\)"):
        samples_in(LeRobot(), of_depth(codes, **{"video.depth_max": 0.01}))
    unmarked = of_depth(codes, is_depth_map=False, **{"video.pix_fmt": "gray12le"})
    with pytest.raises(ManifestError, match="has frames gray12le and is not marked as one of depth"):
        samples_in(LeRobot(), unmarked)
    assert TOP not in samples_in(LeRobot(cameras=(WRIST,)), unmarked)[0]
    of_8_bits = dict(lerobot_set()) | {INFO: of_depth(codes)[INFO]}
    with pytest.raises(DecodeError, match="has frames of 12 bits, and these are yuv420p: leave it out"):
        samples_in(LeRobot(cameras=(TOP,)), of_8_bits)


def test_columns_of_structs_and_texts_are_fields():
    """Columns of structs, as lerobot's language columns, are fields of LeRobot samples."""
    objects = {name: content for name, content in lerobot_set().items() if name != DATA.replace("000.p", "001.p")}
    said = [[{"role": "user", "content": str(row)}] * (row % 3) for row in range(20)]
    table = pq.read_table(io.BytesIO(objects[DATA])).append_column("language", pa.array(said))
    pq.write_table(table, content := io.BytesIO(), row_group_size=7)
    objects[DATA] = content.getvalue()
    told = json.loads(objects[INFO])
    told["features"]["language"] = {"dtype": "language", "shape": [1]}
    objects[INFO] = json.dumps(told).encode()
    found = samples_in(LeRobot({"action": [-0.1, 0.0]}, episodes=(1, 2), cameras=()), objects)
    assert [each["language"] for each in found] == said[LENGTHS[0] : 20]


def test_more_tolerance():
    """`tolerance_s` reads LeRobot sets whose times are a bit off, which are refused by default."""
    late = column(EPISODES, f"videos/{TOP}/from_timestamp", lambda values: [value + 0.002 for value in values])
    jitter = column(DATA, "timestamp", lambda values: [value + 0.001 * (n % 2) for n, value in enumerate(values)])
    objects, first_file = dict(lerobot_set()), (0, 1, 2)
    late(objects)
    jitter(objects)
    with pytest.raises(
        ManifestError, match=r"0.002 s away, and at most 0.0001 are allowed; allow more \(tolerance_s=\)"
    ):
        samples_in(LeRobot(), objects)
    with pytest.raises(RecodeError, match=r"by more than 0.0001 s; allow more \(tolerance_s=\)"):
        samples_in(LeRobot(cameras=(WRIST,), episodes=first_file), objects)
    found = samples_in(LeRobot(tolerance_s=0.01, episodes=first_file), objects)
    assert [number_in(np.moveaxis(each[TOP], 0, 2)) for each in found] == list(range(20))
