"""The fetcher against a store that fails: every byte is compared, every reservation ends at zero."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from streamer.errors import (
    AccessDeniedError,
    ClosedError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreError,
    StreamerError,
    ThrottledError,
)
from streamer.fetch import Fetcher, concurrency
from streamer.manifest.model import Chunk, Extent
from tests.fault.fake_s3 import (
    CONFIG,
    RAMP,
    Act,
    FakeS3,
    KiB,
    MiB,
    Seen,
    at,
    chunk,
    fetched,
    fetching,
    once,
    part,
    serving,
    until,
)

pytestmark = pytest.mark.usefixtures("warm_runtime")


every_client = pytest.mark.parametrize("client", ["curl", "obstore", pytest.param("fsspec", marks=pytest.mark.slow)])


@every_client
async def test_without_faults_no_byte_is_asked_twice(server: FakeS3) -> None:
    """A large chunk is requested as aligned ranges that tile it, so no byte is asked for twice."""
    async with fetching(server) as fetcher:
        assert await fetched(fetcher, part(server, 5, 4 * MiB - 3)) == RAMP[5:-3]
    asked = sorted((seen.start, seen.stop) for seen in server.seen)
    assert asked == [(5, 2 * MiB), (2 * MiB, 4 * MiB - 3)]


@every_client
async def test_throttled_then_well(server: FakeS3) -> None:
    """A request that is answered 503 is retried and counted as throttled."""
    server.script = once(Act(status=503, code="SlowDown"))
    async with fetching(server) as fetcher:
        assert await fetched(fetcher, part(server, 0, MiB)) == RAMP[:MiB]
        after = fetcher.statistics()
    assert (after.requests, after.retries, after.throttled, after.failures) == (2, 1, 1, 0)


async def test_reset_in_the_body_resumes_at_the_last_good_byte(server: FakeS3) -> None:
    """After a reset, the fetcher asks only for the rest of a range, from the byte where the last whole piece ended."""
    server.script = once(Act(reset_after=768 * KiB))
    async with fetching(server) as fetcher:
        assert await fetched(fetcher, part(server, 0, MiB)) == RAMP[:MiB]
    first, second = server.seen
    assert (first.start, second.stop) == (0, MiB)
    assert 256 * KiB <= second.start <= 768 * KiB


@every_client
async def test_truncated_body_resumes(server: FakeS3) -> None:
    """A body that ends early is not taken for whole; another request completes its range."""
    server.script = once(Act(truncate_after=512 * KiB))
    async with fetching(server) as fetcher:
        assert await fetched(fetcher, part(server, 100, MiB)) == RAMP[100:MiB]
    assert len(server.seen) == 2


@every_client
@pytest.mark.parametrize("stall_after", [0, 512 * KiB])
async def test_stalled_body_is_abandoned(server: FakeS3, client: str, stall_after: int) -> None:
    """A body that stalls is abandoned after the progress limit, and its range is completed by another request."""
    async with fetching(server, replace(CONFIG, first_byte_seconds=1.0)) as fetcher:
        await fetched(fetcher, part(server, 0, 10))  # s3fs takes its time to start
        server.script = at(0, Act(stall_after=stall_after))
        assert await fetched(fetcher, part(server, 0, MiB)) == RAMP[:MiB]
        assert fetcher.statistics().stalled >= 1
    kept = server.seen[-1].start
    assert kept == 0 if client == "fsspec" else stall_after - 256 * KiB <= kept <= stall_after


@pytest.mark.parametrize("turn", [range(8), range(7, -1, -1)], ids=["in order", "last first"])
async def test_waiting_in_line_is_no_silence(server: FakeS3, turn: Sequence[int]) -> None:
    """Requests that a full link answers one after the other, in any order, are not counted as stalled."""
    config = replace(CONFIG, first_byte_seconds=1.0)
    async with fetching(server, config=config) as fetcher:
        await fetched(fetcher, part(server, 0, 10))
        server.script = lambda seen, number: Act(wait_seconds=0.2 * (1 + turn[seen.start]))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(fetched(fetcher, part(server, i, i + 100))) for i in range(8)]
        assert [task.result() for task in tasks] == [RAMP[i : i + 100] for i in range(8)]
        assert fetcher.statistics().stalled == 0
    assert len(server.seen) == 9


# Four times faster than the real ones: the floor is 256 KiB/s, and what does not come within 0.375 s is late.
QUICK = replace(CONFIG, progress_seconds=0.375, progress_floor_bytes_per_second=256 * KiB, first_byte_seconds=0.8)


# A quarter above a floor and a quarter below are told apart by the clock.
@pytest.mark.timing
@pytest.mark.parametrize("wanted", [320 * KiB, 576 * KiB], ids=["whole", "pieces"])
async def test_a_slow_but_steady_body_arrives(server: FakeS3, wanted: int) -> None:
    """A body a quarter above the lowest accepted rate is abandoned once, for its large pieces, and not again."""
    server.script = lambda seen, number: Act(bytes_per_second=320 * KiB)
    async with fetching(server, config=QUICK) as fetcher:
        assert await fetched(fetcher, part(server, 0, wanted)) == RAMP[:wanted]
        assert fetcher.statistics().stalled == 1
    assert len(server.seen) == 2


@pytest.mark.timing
async def test_a_slow_but_steady_body_arrives_on_a_full_link(server: FakeS3) -> None:
    """A slow body on a congested link is abandoned once, and its next try comes in small pieces."""
    async with fetching(server, config=QUICK) as fetcher:
        await fetched(fetcher, part(server, 0, 10))
        fetcher._endpoint("s3://bucket/big").control.inflation = 5.0
        server.script = lambda seen, number: Act(bytes_per_second=320 * KiB)
        assert await fetched(fetcher, part(server, 0, 576 * KiB)) == RAMP[: 576 * KiB]
        assert fetcher.statistics().stalled == 1


@pytest.mark.timing
async def test_a_body_a_little_below_the_floor_is_abandoned(server: FakeS3) -> None:
    """A body slightly below the lowest accepted rate is abandoned, although each of its pieces is in time:
    64 KiB each 0.3 s earn 0.25 s.
    """
    server.script = lambda seen, number: Act(bytes_per_second=213 * KiB) if number <= 2 else None
    async with fetching(server, config=replace(QUICK, first_byte_seconds=10.0)) as fetcher:
        assert await fetched(fetcher, part(server, 0, MiB)) == RAMP[:MiB]
        assert fetcher.statistics().stalled == 2


def _stalls_halfway(seen: Seen, number: int) -> Act | None:
    return Act(stall_after=(seen.stop - seen.start) // 2) if seen.key == "sick" else None


STALLING = replace(CONFIG, progress_seconds=0.1, first_byte_seconds=0.2, failing_seconds=30.0, range_bytes=4 * MiB)


@pytest.mark.timing
async def test_an_object_whose_bodies_stall_is_named(server: FakeS3) -> None:
    """An object whose bodies always stall halfway is an error that names it after six tries,
    since bodies of others come whole meanwhile.
    """
    server.objects["sick"] = RAMP
    server.script = _stalls_halfway
    async with fetching(server, config=STALLING) as fetcher, asyncio.TaskGroup() as group:
        others = group.create_task(_keep_fetching(fetcher, server, MiB))
        with pytest.raises(StoreError, match="s3://bucket/sick") as caught:
            await fetched(fetcher, part(server, 0, 4 * MiB, key="sick"))
        others.cancel()
    assert caught.value.details["attempts"] == 6
    assert float(str(caught.value.details["elapsed_seconds"])) < STALLING.failing_seconds


async def test_bodies_that_stall_for_everybody_are_waited_for(server: FakeS3) -> None:
    """A range whose bodies stall while no other large body arrives is retried until the link works again."""
    server.script = lambda seen, number: Act(stall_after=(seen.stop - seen.start) // 2) if number <= 6 else None
    async with fetching(server, config=STALLING) as fetcher:
        assert await fetched(fetcher, part(server, 0, 4 * MiB)) == RAMP
        assert fetcher.statistics().stalled >= 6


async def test_object_replaced_between_two_tries(server: FakeS3) -> None:
    """An object that is replaced between two tries of a range is an error, so no chunk has bytes of two versions."""

    def replace_and_reset(seen: Seen, number: int) -> Act | None:
        if number > 1:
            server.replace("big", RAMP[::-1])
        return Act(reset_after=512 * KiB)

    wanted = part(server, 0, MiB)
    server.script = replace_and_reset
    async with fetching(server) as fetcher:
        with pytest.raises(ObjectChangedError, match="etag:big-0") as caught:
            await fetched(fetcher, wanted)
    assert caught.value.details["attempts"] == 2


@every_client
@pytest.mark.parametrize(
    ("status", "code", "error"),
    [(403, "AccessDenied", AccessDeniedError), (404, "NoSuchKey", ObjectNotFoundError), (400, "BadThing", StoreError)],
)
async def test_permanent_failures_are_not_retried(
    server: FakeS3, status: int, code: str, error: type[StreamerError]
) -> None:
    """A permanent failure is raised after one request, as the typed error with url, attempts and elapsed_seconds."""
    server.script = lambda seen, number: Act(status=status, code=code)
    async with fetching(server) as fetcher:
        with pytest.raises(error) as caught:
            await fetched(fetcher, part(server, 0, 1000))
        assert fetcher.statistics().failures == 1
    assert len(server.seen) == 1
    assert caught.value.details["url"] == "s3://bucket/big"
    assert caught.value.details["attempts"] == 1
    assert isinstance(caught.value.details["elapsed_seconds"], float)


@every_client
async def test_one_object_that_never_works(server: FakeS3) -> None:
    """A bad object fails its chunk after its tries and its time, while other objects can be fetched."""
    server.objects |= {f"o{i}": RAMP[i : i + 1000] for i in range(5)}
    server.script = lambda seen, number: Act(status=500) if seen.key == "o3" else None
    wanted = chunk(*(Extent(server.record(f"o{i}"), 0, 1000) for i in range(5)))
    async with fetching(server) as fetcher:
        with pytest.raises(StoreError, match="s3://bucket/o3") as caught:
            await fetched(fetcher, wanted)
        assert await fetched(fetcher, part(server, 0, 10)) == RAMP[:10]
    assert int(str(caught.value.details["attempts"])) >= CONFIG.attempts
    assert float(str(caught.value.details["elapsed_seconds"])) >= CONFIG.failing_seconds


@every_client
async def test_small_objects_of_a_chunk_come_in_order(server: FakeS3) -> None:
    """A chunk of many objects is their concatenation in order, although a fifth of the requests is refused."""
    contents = [RAMP[i * 100 : i * 100 + 50 + i] for i in range(60)]
    server.objects |= {f"o{i}": content for i, content in enumerate(contents)}
    server.script = lambda seen, number: Act(status=503, code="SlowDown") if number % 5 == 0 else None
    wanted = chunk(*(Extent(server.record(f"o{i}"), 0, len(content)) for i, content in enumerate(contents)))
    async with fetching(server) as fetcher:
        assert await fetched(fetcher, wanted) == b"".join(contents)
    assert len(server.seen) < 1.5 * len(contents)


@pytest.mark.parametrize("client", ["curl", "fsspec"])
async def test_retry_after_closes_the_window(server: FakeS3) -> None:
    """After an answer with Retry-After, no request is sent before the time that the store asked for."""
    times: list[float] = []

    def script(seen: Seen, number: int) -> Act | None:
        times.append(asyncio.get_running_loop().time())
        return Act(status=503, code="SlowDown", headers={"Retry-After": "0.25"}) if number == 1 else None

    server.script = script
    async with fetching(server) as fetcher:
        assert await fetched(fetcher, part(server, 0, 100)) == RAMP[:100]
    assert times[1] - times[0] >= 0.25


@pytest.mark.parametrize("client", ["obstore"])
async def test_a_store_that_refuses_everything_is_asked_less_and_less(server: FakeS3) -> None:
    """A store that refuses everything without Retry-After is asked ever more slowly: 64 ranges make at most 450 tries.
    obstore does not pass Retry-After on.
    """
    loop, begun, limits = asyncio.get_running_loop(), list[float](), list[float]()

    def script(seen: Seen, number: int) -> Act | None:
        begun.append(loop.time())
        limits.append(fetcher.statistics().limited_per_second)
        # From the last of the first ones on, and until the pacing has seen it: its clock stands still while a busy
        # machine does not run us.
        refuses = number <= 64 or loop.time() < begun[63] + 0.5 or not any(limits)
        return Act(status=503, code="SlowDown", headers={"Retry-After": "1"}) if refuses else None

    config = replace(CONFIG, window_start=64, backoff_start_seconds=0.05, backoff_max_seconds=4.0, failing_seconds=5.0)
    async with fetching(server, config=config) as fetcher:
        server.script = script
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(fetched(fetcher, part(server, i, i + 100))) for i in range(64)]
        assert [task.result() for task in tasks] == [RAMP[i : i + 100] for i in range(64)]
        after = fetcher.statistics()
    # 64 at once without pauses would be refused some 5,000 times in half a second.
    assert 64 <= after.throttled <= 450


async def test_outage_of_the_endpoint_is_waited_for() -> None:
    """An endpoint that worked and then refuses connections for longer than all attempts take is waited for."""
    server = FakeS3()
    async with AsyncExitStack() as life:
        await life.enter_async_context(serving(server))
        async with fetching(server) as fetcher:
            assert await fetched(fetcher, part(server, 0, 10)) == RAMP[:10]
            await life.aclose()
            async with asyncio.TaskGroup() as group:
                task = group.create_task(fetched(fetcher, part(server, 0, MiB)))
                await until(lambda: fetcher.statistics().retries > CONFIG.attempts)
                await life.enter_async_context(serving(server, server.port))
            assert task.result() == RAMP[:MiB]


async def test_what_was_under_way_proves_nothing_in_an_outage(server: FakeS3) -> None:
    """A request sent before a range first failed does not show, by its end, that the store serves others."""
    last, back = asyncio.Event(), asyncio.Event()

    def script(seen: Seen, number: int) -> Act | None:
        if number == 1:
            return Act(until=last)
        return None if back.is_set() else Act(reset_after=0)

    server.script = script
    async with fetching(server) as fetcher, asyncio.TaskGroup() as group:
        under_way = group.create_task(fetched(fetcher, part(server, 0, 10)))
        await until(lambda: len(server.seen) == 1)
        waiting = group.create_task(fetched(fetcher, part(server, MiB, 2 * MiB)))
        await until(lambda: fetcher.statistics().retries > 0)
        last.set()
        assert await under_way == RAMP[:10]
        before = fetcher.statistics().retries
        await until(lambda: fetcher.statistics().retries > before + 2 * CONFIG.attempts)
        back.set()
    assert waiting.result() == RAMP[MiB : 2 * MiB]


async def test_endpoint_that_never_answered(unused_tcp_port: int) -> None:
    """A store that never answered is waited for during an outage's time, with one notice; then an error names it."""
    said: list[str] = []
    server = FakeS3()
    server.port = unused_tcp_port
    config = replace(CONFIG, outage_seconds=2.0)
    async with fetching(server, config, notify=said.append) as fetcher:
        begun = asyncio.get_running_loop().time()
        with pytest.raises(StoreError, match=rf"tried http://127.0.0.1:{unused_tcp_port}") as caught:
            await fetched(fetcher, part(server, 0, 10))
        assert asyncio.get_running_loop().time() - begun >= 2.0
    assert int(caught.value.details["attempts"]) > CONFIG.attempts
    assert len(said) == 1
    assert said[0].startswith("waiting for s3://bucket, which has served nothing for ")
    assert "no connection" in said[0]
    assert "repeated for 2 s" in said[0]


async def test_a_job_may_start_while_its_store_refuses() -> None:
    """The first range of a job is fetched although the store refuses it more often than a range has attempts."""
    server, refused = FakeS3(), CONFIG.attempts + 2
    server.script = lambda seen, number: Act(status=503, code="SlowDown") if number <= refused else None
    async with serving(server), fetching(server, replace(CONFIG, outage_seconds=60.0)) as fetcher:
        assert await fetched(fetcher, part(server, 0, MiB)) == RAMP[:MiB]
        assert fetcher.statistics().retries == refused


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [(403, "AccessDenied", AccessDeniedError), (404, "NoSuchBucket", ObjectNotFoundError)],
)
async def test_what_waiting_does_not_mend_is_an_error_at_once(status: int, code: str, kind: type[StoreError]) -> None:
    """Wrong credentials, or a missing bucket or object, are an error after one request, also when it is the first."""
    server = FakeS3()
    server.script = lambda seen, number: Act(status=status, code=code)
    async with serving(server), fetching(server) as fetcher:
        with pytest.raises(kind):
            await fetched(fetcher, part(server, 0, 10))
    assert len(server.seen) == 1


@every_client
@pytest.mark.parametrize(
    ("status", "code", "said"),
    [(400, "ExpiredToken", "expired"), (401, "AuthenticationRequired", "check the credentials")],
    ids=["amazon", "google-azure"],
)
async def test_expired_credentials_are_renewed_once(
    server: FakeS3, client: str, status: int, code: str, said: str
) -> None:
    """Expired credentials (also the 401 of Google and Azure) make the client anew at once, and only once.
    Those in storage_options cannot change; s3fs does not say where it has them from, and is asked on.
    """
    server.script = lambda seen, number: Act(status=status, code=code) if number == 1 else None
    async with fetching(server, config=replace(CONFIG, outage_seconds=0.2)) as fetcher:
        assert await fetched(fetcher, part(server, 0, 10)) == RAMP[:10]
        server.script = lambda seen, number: Act(status=status, code=code)
        with pytest.raises(AccessDeniedError, match=said):
            await fetched(fetcher, part(server, 0, 10))
    assert len(server.seen) == 4 or client == "fsspec"


@every_client
async def test_renewed_credentials_are_read_from_the_profile(
    server: FakeS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credentials that expire in mid-run and were renewed in their file cost one refused request and no error."""
    profile = "[default]\naws_access_key_id = {}\naws_secret_access_key = s\n"
    (tmp_path / "credentials").write_text(profile.format("OLDKEY"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    async with fetching(server, options={"profile": "default"}) as fetcher:
        assert await fetched(fetcher, part(server, 0, 10)) == RAMP[:10]
        (tmp_path / "credentials").write_text(profile.format("NEWKEY"))
        server.script = lambda seen, number: Act(status=400, code="ExpiredToken") if seen.signer == "OLDKEY" else None
        assert await fetched(fetcher, part(server, 0, MiB)) == RAMP[:MiB]
        assert fetcher.statistics().failures == 0
    assert [seen.signer for seen in server.seen] == ["OLDKEY", "OLDKEY", "NEWKEY"]


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Writes the keys of the default profile."""
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))

    def write(key: str) -> None:
        (tmp_path / "credentials").write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = s\n")

    write("OLDKEY")
    return write


@pytest.mark.parametrize("client", ["curl", pytest.param("obstore", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("status", "code"), [(403, "InvalidAccessKeyId"), (400, "InvalidToken")])
async def test_keys_that_were_rotated_away_are_looked_for_again(
    server: FakeS3, client: str, status: int, code: str, profile: Callable[[str], None]
) -> None:
    """Keys that the store does not know are read once more from their profile, also for the first request of a job.
    If they stay unknown, the error says what that means.
    """

    def script(seen: Seen, number: int) -> Act | None:
        profile("NEWKEY")
        return Act(status=status, code=code) if seen.signer == "OLDKEY" else None

    server.script = script
    async with fetching(server, options={"profile": "default"}) as fetcher:
        assert await fetched(fetcher, part(server, 0, 10)) == RAMP[:10]
    assert [seen.signer for seen in server.seen] == ["OLDKEY", "NEWKEY"]
    server.script = lambda seen, number: Act(status=status, code=code)
    async with fetching(server, options={"profile": "default"}) as fetcher:
        with pytest.raises(AccessDeniedError, match=r"does not know this key"):
            await fetched(fetcher, part(server, 0, 10))
    assert len(server.seen) == 4


@pytest.mark.parametrize("client", ["curl", pytest.param("obstore", marks=pytest.mark.slow)])
@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidAccessKeyId"])
async def test_keys_that_are_renewed_late_are_waited_for(
    server: FakeS3, client: str, code: str, profile: Callable[[str], None]
) -> None:
    """Keys that are refused after the store has served are waited for until the profile has new ones."""
    refused = asyncio.Event()

    def script(seen: Seen, number: int) -> Act | None:
        if seen.signer == "OLDKEY" and number >= 4:
            refused.set()
        return Act(status=400, code=code) if seen.signer == "OLDKEY" and number else None

    async with fetching(server, options={"profile": "default"}) as fetcher:
        assert await fetched(fetcher, part(server, 0, 10)) == RAMP[:10]
        server.script = script
        reading = asyncio.create_task(fetched(fetcher, part(server, 0, MiB)))
        await refused.wait()
        profile("NEWKEY")
        assert await reading == RAMP[:MiB]
        assert fetcher.statistics().failures == 0
    assert server.seen[-1].signer == "NEWKEY"


@pytest.mark.parametrize("client", ["curl", pytest.param("obstore", marks=pytest.mark.slow)])
@pytest.mark.parametrize("code", ["AccessDenied", "RequestTimeTooSkewed"])
async def test_a_store_that_refuses_everything_is_waited_for(server: FakeS3, client: str, code: str) -> None:
    """A store that has served and then refuses access is waited for during an outage's time, and no longer.
    A policy may be mended and a clock set; a refusal of the first request is an error at once.
    """
    server.script = lambda seen, number: Act(status=403, code=code)
    async with fetching(server, config=replace(CONFIG, outage_seconds=1.0)) as fetcher:
        with pytest.raises(AccessDeniedError):
            await fetched(fetcher, part(server, 0, 10))
        assert len(server.seen) == 1
        server.script = lambda seen, number: None
        assert await fetched(fetcher, part(server, 0, 10)) == RAMP[:10]
        server.script = lambda seen, number: Act(status=403, code=code) if number < 12 else None
        assert await fetched(fetcher, part(server, 0, MiB)) == RAMP[:MiB]
        assert fetcher.statistics().failures == 1
        server.script = lambda seen, number: Act(status=403, code=code)
        with pytest.raises(AccessDeniedError, match=r"\(\d+ tries in 1\.\d s\)"):
            await fetched(fetcher, part(server, 0, 10))


@pytest.mark.parametrize("client", ["curl", pytest.param("obstore", marks=pytest.mark.slow)])
async def test_one_object_that_is_forbidden_is_not_waited_for(server: FakeS3, client: str) -> None:
    """A forbidden object is an error after one request for it, and one for another that shows good credentials."""
    server.objects["secret"] = RAMP
    server.script = lambda seen, number: Act(status=403, code="AccessDenied") if seen.key == "secret" else None
    async with fetching(server, config=replace(CONFIG, outage_seconds=60.0)) as fetcher:
        assert await fetched(fetcher, part(server, 0, 10)) == RAMP[:10]
        with pytest.raises(AccessDeniedError):
            await fetched(fetcher, chunk(Extent(server.record("secret"), 0, 10)))
    assert [seen.key for seen in server.seen] == ["big", "secret", "big"]


async def test_a_body_that_comes_in_pieces_is_no_failure(server: FakeS3) -> None:
    """A range arrives although its bodies are reset more often than it has tries, since each brings some bytes."""
    server.script = lambda seen, number: Act(reset_after=300 * KiB) if seen.stop - seen.start > MiB else None
    config = replace(CONFIG, range_bytes=4 * MiB, attempts=3, failing_seconds=0.0)
    async with fetching(server, config=config) as fetcher:
        assert await fetched(fetcher, part(server, 0, 4 * MiB)) == RAMP
    assert len(server.seen) > 2 * config.attempts


async def test_resets_cost_few_bytes(server: FakeS3) -> None:
    """With 30 % of bodies reset somewhere, the store sends at most 5 % more bytes than are needed."""
    draw = random.Random(5)

    def script(seen: Seen, number: int) -> Act | None:
        return Act(reset_after=draw.randrange(seen.stop - seen.start)) if draw.random() < 0.3 else None

    server.script = script
    async with fetching(server, config=replace(CONFIG, range_bytes=4 * MiB)) as fetcher:
        for _ in range(20):
            assert await fetched(fetcher, part(server, 0, 4 * MiB)) == RAMP
        assert fetcher.statistics().retries >= 4
    assert sum(seen.sent for seen in server.seen) <= 1.05 * 20 * len(RAMP)


async def test_one_object_that_never_answers(server: FakeS3) -> None:
    """An object that never answers is an error that names it, after at least two tries and a failing range's time,
    while others are served.
    """
    server.objects["mute"] = RAMP
    server.script = lambda seen, number: Act(wait_seconds=60) if seen.key == "mute" else None
    # On a busy machine everybody is slow for a while; no answer is no silence then, and it takes more than two tries.
    config = replace(CONFIG, first_byte_seconds=0.2, failing_seconds=0.5, outage_seconds=30.0, attempts=100)
    async with fetching(server, config=config) as fetcher, asyncio.TaskGroup() as group:
        await fetched(fetcher, part(server, 0, 10))
        others = group.create_task(_keep_fetching(fetcher, server))
        with pytest.raises(StoreError, match="s3://bucket/mute") as caught:
            await fetched(fetcher, part(server, 0, 10, key="mute"))
        others.cancel()
    assert 2 <= int(str(caught.value.details["attempts"])) < config.attempts
    assert 0.5 <= float(str(caught.value.details["elapsed_seconds"])) < config.outage_seconds


@pytest.mark.timing
async def test_waiting_for_the_window_lends_no_patience(server: FakeS3) -> None:
    """A request that waits for the window past the moment of its judgement gets one more try and no longer patience."""
    server.objects["mute"] = RAMP
    server.script = lambda seen, number: Act(wait_seconds=60 if seen.key == "mute" else 0.1)
    config = replace(CONFIG, window_start=1, window_min=1, window_max=1, first_byte_seconds=0.2, failing_seconds=0.9)
    async with fetching(server, config=config) as fetcher, asyncio.TaskGroup() as group:
        await fetched(fetcher, part(server, 0, 10))
        begin = asyncio.get_running_loop().time()
        mute = asyncio.create_task(fetcher.fetch(part(server, 0, 10, key="mute"), due=lambda: begin))
        await until(lambda: sum(seen.key == "mute" for seen in server.seen) == 2)
        for i in range(6):  # 0.6 s, after the 0.6 s of two tries
            group.create_task(_fetch_due(fetcher, part(server, i, i + 1), lambda: begin - 1))
        with pytest.raises(StoreError, match="s3://bucket/mute") as caught:
            await mute
    # Two tries, six others and 0.3 s; it was four times the first patience, 0.8 s.
    assert 1.4 <= float(str(caught.value.details["elapsed_seconds"])) < 1.8


@pytest.mark.timing
async def test_one_object_that_never_answers_while_nobody_else_asks(server: FakeS3) -> None:
    """An object that never answers while no other request runs is told from an outage by a probe for a served byte.
    Three tries are as long as the first; the third was four times as long where two had taken all the time.
    """
    server.objects["mute"] = RAMP
    server.script = lambda seen, number: Act(wait_seconds=60) if seen.key == "mute" else None
    config = replace(CONFIG, first_byte_seconds=0.6, failing_seconds=1.0, outage_seconds=30.0)
    async with fetching(server, config=config) as fetcher:
        await fetched(fetcher, part(server, 5, 10))
        with pytest.raises(StoreError, match="s3://bucket/mute") as caught:
            await fetched(fetcher, part(server, 0, 10, key="mute"))
    assert 1.7 <= float(str(caught.value.details["elapsed_seconds"])) < 3.0
    assert {(seen.start, seen.stop) for seen in server.seen[1:] if seen.key == "big"} == {(5, 6)}


async def test_one_object_that_never_answers_after_a_burst(server: FakeS3, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that never answers is an error by its name, although the endpoint was congested before."""
    monkeypatch.setattr(concurrency, "STALE_SECONDS", 0.2)
    server.objects["mute"] = RAMP
    waits = {"mute": 60.0}
    server.script = lambda seen, number: Act(wait_seconds=waits[seen.key])
    config = replace(CONFIG, first_byte_seconds=0.3, failing_seconds=0.8, attempts=100, outage_seconds=60.0)
    async with fetching(server, config=config) as fetcher:
        for waits["big"] in (0.001, 0.1):
            for _ in range(3):
                await asyncio.gather(*(fetched(fetcher, part(server, i, i + 10)) for i in range(16)))
        endpoint = fetcher._endpoint("s3://bucket/big")
        assert endpoint.congested
        waits["big"] = 0.001
        with pytest.raises(StoreError, match="s3://bucket/mute") as caught:
            await fetched(fetcher, part(server, 0, 10, key="mute"))
        assert not endpoint.congested
    assert int(str(caught.value.details["attempts"])) <= 5


async def _keep_fetching(fetcher: Fetcher, server: FakeS3, length: int = 10) -> None:
    while True:
        await fetched(fetcher, part(server, 0, length))
        await asyncio.sleep(0.01)


async def test_a_name_that_does_not_exist() -> None:
    """An endpoint whose name no resolver knows raises StoreError, which says that the name cannot be resolved."""
    server = FakeS3()
    options = {"key": "k", "secret": "s", "endpoint_url": "http://streamer-no-such-host.invalid:9"}
    async with fetching(server, options=options) as fetcher:
        with pytest.raises(StoreError, match="name of the endpoint cannot be resolved"):
            await fetched(fetcher, part(server, 0, 10))


async def test_memory_is_reserved_before_the_request(server: FakeS3) -> None:
    """Memory is reserved before a request: with space for two chunks, a third one waits until one is closed.
    A chunk larger than the budget is granted alone.
    """
    config = replace(CONFIG, memory_bytes=2 * MiB)
    async with fetching(server, config=config) as fetcher:
        first = await fetcher.fetch(part(server, 0, MiB))
        second = await fetcher.fetch(part(server, 0, MiB))
        asked = len(server.seen)
        async with asyncio.TaskGroup() as group:
            third = group.create_task(fetcher.fetch(part(server, 0, MiB)))
            await until(lambda: fetcher.statistics().waiting > 0)
            assert len(server.seen) == asked
            first.close()
        third.result().close()
        second.close()
        assert fetcher.statistics().reserved_peak_bytes == 2 * MiB
        assert await fetched(fetcher, part(server, 0, 4 * MiB)) == RAMP


async def test_window_serves_what_is_due_first(server: FakeS3) -> None:
    """Of the chunks that wait for the window, the one that is due first goes first, also when due times change."""
    config = replace(CONFIG, window_start=1, window_min=1, window_max=1)
    due = {0: 0.0, 1: 3.0, 2: 2.0, 3: 1.0}
    async with fetching(server, config=config) as fetcher, asyncio.TaskGroup() as group:
        server.script = once(Act(wait_seconds=10))
        for i in range(4):
            group.create_task(_fetch_due(fetcher, part(server, i, i + 1), partial(due.__getitem__, i)))
        await until(lambda: fetcher.statistics().waiting >= 3)
        due[1] = 0.5
        server.released.set()
    assert [seen.start for seen in server.seen] == [0, 1, 3, 2]


async def _fetch_due(fetcher: Fetcher, wanted: Chunk, due: Callable[[], float]) -> None:
    with await fetcher.fetch(wanted, due=due):
        pass


async def test_error_of_the_body_leaves_as_itself(server: FakeS3) -> None:
    """An error inside `async with Fetcher` is raised as itself and not wrapped in a group."""

    async def fails() -> None:
        async with fetching(server) as fetcher:
            await fetched(fetcher, part(server, 0, 10))
            raise ThrottledError("mine")

    with pytest.raises(ThrottledError, match="mine"):
        await fails()


@every_client
async def test_read_of_an_extent(server: FakeS3) -> None:
    """A read of an extent returns its bytes, and an empty extent none."""
    async with fetching(server) as fetcher:
        assert await fetcher.read(Extent(server.record("big"), 10, 700_000)) == RAMP[10:700_000]
        assert await fetcher.read(Extent(server.record("big"), 10, 10)) == b""


async def test_closed_fetcher_says_so(server: FakeS3) -> None:
    """A fetcher that is used after its block raises ClosedError."""
    async with fetching(server) as fetcher:
        pass
    with pytest.raises(ClosedError):
        await fetcher.read(Extent(server.record("big"), 0, 1))
