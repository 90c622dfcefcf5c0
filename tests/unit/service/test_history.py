"""The history that the page draws: rings, ranks, jobs, marks, the file over a restart, and requests over real HTTP."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from types import SimpleNamespace

import aiohttp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamer.config import CacheConfig, EngineConfig
from streamer.engine.engine import Engine
from streamer.engine.session import Waiting
from streamer.service.history.history import MAX_JOBS, MAX_MARKS, MAX_RANKS, SERIES, History, Marks, RankSample
from streamer.service.history.recorder import FILE_NAME, Recorder, StepPace, keep_history, read_history, write_history
from streamer.service.history.rings import MAX_SECONDS, POINTS, STEPS, Rings, choose_level
from streamer.service.recent_warnings import RecentWarnings, recent_warnings
from streamer.service.web import parse_seconds, serve_http
from tests.unit.service.test_web import free_port

BEGIN = 1_795_440_000
CALM = RankSample(samples=100.0, waiting=0.25, loader=math.nan)
VALUES = st.lists(
    st.tuples(st.integers(0, 90), st.one_of(st.just(math.nan), st.floats(-1e6, 1e6))), min_size=1, max_size=60
)


def shown(history: History, now: float, seconds: float = 900) -> dict:
    """Returns the history as the page gets it."""
    return json.loads(history.to_json(now, seconds))


@settings(max_examples=25, deadline=None)
@given(VALUES)
def test_a_bin_is_the_mean_of_its_seconds(values):
    """Each bin of a curve is the mean of the known values of its seconds, at every step and with gaps of any length."""
    rings = Rings(2, np.float32)
    expected = [defaultdict(list) for _ in STEPS]
    at = BEGIN
    for gap, value in values:
        at += gap
        rings.add(at, np.array([value, 1.0]))
        for level, step in enumerate(STEPS):
            expected[level][at // step].append(value)
    for level, step in enumerate(STEPS):
        last = at // step
        first = max(last - POINTS + 1, BEGIN // step)
        found = rings.read(level, first, last)
        for number in range(first, last + 1):
            known = [value for value in expected[level].get(number, []) if not math.isnan(value)]
            mean = np.float32(np.mean(known)) if known else math.nan
            assert found[number - first, 0] == pytest.approx(mean, rel=1e-4, abs=1e-2, nan_ok=True)
            assert (found[number - first, 1] == 1.0) == (number in expected[level])


def test_the_newest_bins_replace_the_oldest():
    """A ring keeps the newest bins and drops the oldest."""
    rings = Rings(1, np.float32)
    for second in range(2 * STEPS[0] * POINTS):
        rings.add(BEGIN + second, np.array([float(second)]))
    last = (BEGIN + second) // STEPS[0]
    found = rings.read(0, last - POINTS + 1, last)[:, 0]
    assert found.tolist() == [second + 0.5 for second in range(900, 1800, 2)]
    assert rings.first_bin(0, 0, last) == last - POINTS + 1


def test_a_clock_that_is_set_back_shows_nothing_of_the_future():
    """After the clock is set back nothing of the future is shown, and the curve goes on."""
    history = History()
    for second in (BEGIN + 1000, BEGIN, BEGIN + 2):
        history.add(second, {"in_flight": float(second - BEGIN)}, {})
    found = shown(history, BEGIN + 3)
    assert found["start"] == BEGIN
    assert found["engine"]["in_flight"] == [0.0, 2.0]


def test_levels():
    """The finest level that goes back far enough is shown, and the last one for all longer times."""
    assert [choose_level(seconds) for seconds in (1, 900, 901, 3600, 10**9)] == [0, 0, 1, 1, len(STEPS) - 1]


def test_it_takes_less_than_a_megabyte():
    """The history with everything at its limits takes less than a megabyte, and an answer less than 400 kB."""
    history = History()
    for number in range(500):
        ranks = {(f"{'j' * 115}{number + job}", f"{'r' * 110}{number}", "d" * 64): CALM for job in range(50)}
        history.add(BEGIN + number, dict.fromkeys(SERIES, 123456789.123), ranks)
        for what in ("engine", "epoch", "warning"):
            history.marks.add(BEGIN + 11 * number, what, "w" * 1000)
    assert history.nbytes < 900_000
    assert len(history.encode()) < 1_000_000
    answer = history.to_json(BEGIN + 500, 900)
    assert len(answer) < 400_000
    found = json.loads(answer)
    assert (len(found["ranks"]), found["ranks_left_out"], len(found["jobs"])) == (MAX_RANKS, 50 - MAX_RANKS, MAX_JOBS)
    assert all(len(values) <= POINTS for values in found["engine"].values())


def test_ratios_are_those_of_all_requests():
    """Hits of a long bin are weighted by bytes, times to the first byte by requests: no mean of means."""
    history = History()
    history.add(BEGIN, {"hit_bytes": 0.0, "needed_bytes": 30.0, "first_bytes": 1.0, "first_byte_seconds": 1.0}, {})
    history.add(BEGIN + 1, {"hit_bytes": 9.0, "needed_bytes": 10.0, "first_bytes": 9.0, "first_byte_seconds": 0.9}, {})
    history.add(BEGIN + 2, {"hit_bytes": 0.0, "needed_bytes": 0.0, "first_bytes": 0.0, "first_byte_seconds": 0.0}, {})
    engine = shown(history, BEGIN + 3)["engine"]
    assert engine["hits"] == [0.225, None]
    assert engine["first_byte_seconds"] == [0.19, None]
    assert "needed_bytes" not in engine


def test_a_new_rank_takes_the_place_of_one_that_is_gone():
    """A new rank takes the curve of one that is gone, and a rank that comes back goes on with its own."""
    history = History()
    many = {("job", f"rank {number}", "d"): CALM for number in range(MAX_RANKS)}
    history.add(BEGIN, {}, many)
    history.add(BEGIN + 2, {}, dict(list(many.items())[1:]))
    history.add(BEGIN + 4, {}, {("other", "rank 0", "d"): RankSample(7.0, 0.5, 0.75)})
    found = {(rank["job"], rank["consumer"]): rank for rank in shown(history, BEGIN + 5)["ranks"]}
    assert ("job", "rank 0") not in found
    new = found["other", "rank 0"]
    assert (new["samples"], new["waiting"], new["loader"]) == ([None, None, 7.0], [None, None, 0.5], [None, None, 0.75])
    assert (new["connected"], found["job", "rank 1"]["samples"]) == (True, [100.0, 100.0, None])
    assert not shown(history, BEGIN + 60)["ranks"][0]["connected"]


def test_jobs_have_the_time_since_they_began():
    """A job shows the time since it began; a short interruption does not begin it anew, a long one does."""
    history = History()
    for second in (0, 100, 600, 5000):
        history.add(BEGIN + second, {}, {("job", "rank 0", "d"): CALM})
        if second == 600:
            assert shown(history, BEGIN + 601)["jobs"] == [{"job": "job", "seconds": 601.0}]
    assert shown(history, BEGIN + 5002)["jobs"] == [{"job": "job", "seconds": 2.0}]


def test_marks_are_bounded_by_kind():
    """Marks are bounded by kind, so that warnings replace no restart; warnings of some seconds are one mark."""
    marks = Marks()
    marks.add(BEGIN, "engine", "the engine started")
    for number in range(1000):
        marks.add(BEGIN + number, "warning", f"warning {number}")
    found = list(marks)
    assert found[0].text == "the engine started"
    assert len(found) == 1 + MAX_MARKS
    assert (found[-1].text, found[-1].count) == ("warning 999", 10)


def test_names_and_texts_are_clean():
    """Names and texts of the history have no control characters, marks of direction or secrets, and are cut."""
    history = History()
    name = "rank \x1b[31m\u202e0\n"
    history.add(BEGIN, {}, {("job\r", name, "d" * 1000): CALM})
    history.marks.add(BEGIN, "warning", "https://user:word@host/a?X-Amz-Signature=abc\x07 answers 503")
    text = history.to_json(BEGIN + 1).decode()
    found = json.loads(text)
    (rank,) = found["ranks"]
    assert (rank["job"], rank["consumer"], len(rank["dataset"])) == ("job?", "rank ?[31m?0?", 120)
    assert not any(secret in text for secret in ("user:word", "abc", "\\u0007"))


def test_a_restart_shows_what_was_before(tmp_path):
    """After a restart the history shows what was kept, and a gap; only its user may read the file."""
    history = History()
    for second in range(40):
        history.add(BEGIN + second, {"store_bytes": 1e6 + second}, {("job", "rank 0", "d"): CALM})
    history.marks.add(BEGIN + 1, "epoch", "epoch 1 of job")
    write_history(tmp_path / FILE_NAME, history.encode())
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600
    again = History()
    assert read_history(tmp_path / FILE_NAME, again)
    assert shown(again, BEGIN + 40) == shown(history, BEGIN + 40)
    again.add(BEGIN + 60, {"store_bytes": 5.0}, {})
    assert shown(again, BEGIN + 61)["engine"]["store_bytes"][-12:] == [1e6] + [None] * 10 + [5.0]


@pytest.mark.parametrize("damage", [b"", b"\x80", "cut", "other layout", "large"])
def test_a_file_that_is_not_ours_is_not_used(tmp_path, damage, caplog):
    """A damaged, too large or foreign history file is not used, which is logged, and the curves begin anew."""
    caplog.set_level("INFO")
    content = History().encode()
    contents = {"cut": content[:-5], "other layout": content.replace(b"(2, 8", b"(3, 8"), "large": content * 3}
    (tmp_path / FILE_NAME).write_bytes(contents.get(damage, damage))
    assert not read_history(tmp_path / FILE_NAME, History())
    assert "the curves begin anew" in caplog.text


def test_a_disk_that_takes_nothing_is_no_error(tmp_path, caplog):
    """A history that cannot be written is logged and is no error."""
    caplog.set_level("INFO")
    write_history(tmp_path / "gone" / FILE_NAME, b"x")
    assert "will not outlive this engine" in caplog.text
    assert not read_history(tmp_path / "gone" / FILE_NAME, History())


def test_the_pace_of_slow_steps_is_smooth():
    """The pace of slow steps is smooth: a batch every three seconds is a third a second, and it falls without one."""
    pace = StepPace(10, 0.0)
    assert math.isnan(pace.update(10, 1.0))
    found = [pace.update(10 + second // 3, float(second)) for second in range(2, 13)]
    assert found[1:] == pytest.approx([1 / 3] * 10)
    assert pace.update(14, 72.0) == pytest.approx(1 / 60)


def make_session(now: list[float], **request: object) -> SimpleNamespace:
    """Stands for a session of the engine with the fields that the recorder reads."""
    names = {"job": "job", "consumer": "rank 0", "stream": "", "dataset": "d", "global_batch": 64, "world_size": 2}
    return SimpleNamespace(
        request=SimpleNamespace(**{**names, **request}),
        progress=SimpleNamespace(done=0),
        waiting=Waiting(0.0),
        finding=None,
        finding_at=0.0,
        running_epoch=None,
        engine_now=lambda: now[0],
    )


async def test_the_recorder_looks_at_sessions(tmp_path):
    """The recorder takes samples, waiting, reports and epochs from sessions; loaders of one rank are one curve."""
    now = [100.0]
    clock = [float(BEGIN)]
    async with Engine(EngineConfig(cache=CacheConfig(directory=tmp_path, limit_bytes=8 << 20))) as engine:
        history = History()
        recorder = Recorder(engine, history, RecentWarnings(), clock=lambda: clock[0])
        session = make_session(now)
        unknown = make_session(now, consumer="rank 1", world_size=0)
        engine.sessions = {"a": session, "b": make_session(now, stream="twin"), "c": unknown}
        recorder.look()
        for _ in range(4):
            clock[0] += 1
            now[0] += 1
            session.waiting.update(True, now[0] - 0.5)
            session.waiting.update(False, now[0] - 0.25)
            session.progress.done += 3
            session.running_epoch = int(now[0] - 100) // 2
            session.finding = SimpleNamespace(waiting_share=0.5)
            session.finding_at = now[0]
            recorder.look()
        engine.sessions = {}
    found = shown(history, clock[0] + 1)
    ranks = {rank["consumer"]: rank for rank in found["ranks"]}
    assert ranks["rank 0"]["samples"] == [96.0] * 3
    assert ranks["rank 0"]["waiting"] == [0.25] * 3
    assert ranks["rank 0"]["loader"] == [0.5] * 3
    assert ranks["rank 1"]["samples"] == [None] * 3
    assert (found["engine"]["samples"][-1], found["engine"]["waiting"][-1]) == (96.0, 0.25)
    assert [mark["text"] for mark in found["marks"]] == ["epoch 0 of job", "epoch 1 of job", "epoch 2 of job"]


async def test_a_late_look_leaves_no_gap(tmp_path):
    """A look that is seconds late leaves no gap in the curves; minutes without a look do."""
    clock = [float(BEGIN)]
    async with Engine(EngineConfig(cache=CacheConfig(directory=tmp_path, limit_bytes=8 << 20))) as engine:
        history = History()
        recorder = Recorder(engine, history, RecentWarnings(), clock=lambda: clock[0])
        for seconds in (1, 1, 7, 100):
            clock[0] += seconds
            recorder.look()
    assert shown(history, clock[0])["engine"]["in_flight"] == [0.0] * 5 + [None] * 49 + [0.0]


async def test_an_engine_that_starts_again_is_marked(tmp_path, caplog):
    """The history marks the first start of an engine and a later start after it."""
    texts = []
    async with Engine(EngineConfig(cache=CacheConfig(directory=tmp_path, limit_bytes=8 << 20))) as engine:
        for _ in range(2):
            with recent_warnings() as warnings:
                async with keep_history(engine, tmp_path, warnings) as history:
                    texts.append([mark.text for mark in history.marks])
    assert texts == [["the engine started"], ["the engine started", "the engine started again"]]


async def test_warnings_become_marks(tmp_path):
    """Warnings of the log become at most one mark a second, with their number and the newest text."""
    import logging

    async with Engine(EngineConfig(cache=CacheConfig(directory=tmp_path, limit_bytes=8 << 20))) as engine:
        with recent_warnings() as warnings:
            history = History()
            recorder = Recorder(engine, history, warnings)
            recorder.look()
            logging.getLogger("streamer.test").warning("s3://bucket answers %d", 503)
            logging.getLogger("streamer.test").error("s3://bucket answers %d", 403)
            recorder.look()
            recorder.look()
    assert [(mark.what, mark.text, mark.count) for mark in history.marks] == [
        ("warning", "ERROR s3://bucket answers 403", 2)
    ]


def test_seconds_of_a_request():
    """The seconds of a request for the history are a whole number, at most what is kept; other text is refused."""
    assert [parse_seconds(text) for text in ("", "3600", "999999999999")] == [900, 3600, MAX_SECONDS]
    assert [parse_seconds(text) for text in ("1.5", "-1", "x", "٣", "9" * 13, "1e9")] == [None] * 6


@pytest.mark.process
async def test_the_history_over_http():
    """/history.json answers the seconds asked for, 400 to other text, 404 without a history, 421 to other hosts."""
    history = History()
    address = f"127.0.0.1:{free_port()}"
    async with aiohttp.ClientSession() as session:
        async with serve_http(address, dict, lambda: "", history):
            async with session.get(f"http://{address}/history.json?seconds=3600") as answer:
                assert (answer.content_type, (await answer.json())["step"]) == ("application/json", 8)
            async with session.get(f"http://{address}/history.json?seconds=all") as answer:
                assert answer.status == 400
            async with session.get(f"http://{address}/history.json", headers={"Host": "evil.example.org"}) as answer:
                assert answer.status == 421
        async with serve_http(address, dict, lambda: ""), session.get(f"http://{address}/history.json") as answer:
            assert answer.status == 404
