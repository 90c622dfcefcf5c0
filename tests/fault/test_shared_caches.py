"""Engines that share their caches, as processes: what comes from the store, and what happens when one of them fails."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streamer.formats.chunkfile import HEADER_BYTES
from tests.fault.namespaces import Namespaces, as_root
from tests.fault.peer_engines import URL, Fleet, Reader, running, storage_options

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("s3sim") is None, reason="counts what s3sim sends; it is not installed"),
]

Start = Callable[..., Fleet]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts engines that all know each other."""
    fleets: list[Fleet] = []

    def started(objects: int, whole: float, namespaces: Namespaces | None = None) -> Fleet:
        fleets.append(Fleet(tmp_path, objects, whole, namespaces=namespaces))
        fleets[0].start()
        return fleets[0]

    yield started
    for fleet in fleets:
        fleet.close()


@pytest.fixture
def namespaces() -> Iterator[Namespaces]:
    """Four, removed at the end."""
    made = Namespaces(4)
    yield made
    made.close()


@pytest.mark.parametrize("whole", [0.4, 1.0, 1.6])
def test_one_job_reads_each_byte_from_the_store_once(start: Start, whole: float) -> None:
    """A job on four engines reads each byte from the store once, and when warm only what their caches cannot keep.
    Each epoch has another order and another cut.
    Except of chunks for which a peer was late, in this epoch or in the one before, when its home did not hear of it:
    on a busy machine that is no fault of the engines.
    """
    fleet = start(4000, whole)
    fleet.read(*["job"] * 4)
    cold, answers = fleet.epoch([1] * 4, ranks=4)
    assert sum(answer["samples"] for answer in answers) == fleet.objects
    assert cold - fleet.late_share() <= 1.02
    late = [0.0, fleet.late_share()]
    for epoch in range(2, 4):
        before = fleet.total("peer_bytes")
        warm, answers = fleet.epoch([epoch] * 4, ranks=4)
        assert sum(answer["samples"] for answer in answers) == fleet.objects
        bound = max(0.0, 1.0 - fleet.kept_share())
        late.append(fleet.late_share())
        assert warm - (late[-1] - late[-3]) <= bound + 0.02
        between = (fleet.total("peer_bytes") - before) / fleet.store.data_bytes
        assert between <= 0.75 * min(1.0, whole) + 0.02


@pytest.mark.timing
def test_a_fast_cold_epoch_reads_each_byte_from_the_store_once(start: Start) -> None:
    """A cold epoch as fast as four engines can reads each byte from the store once, since busy peers answer in time."""
    fleet = start(4000, 1.28)
    fleet.store.set("ttfb_ms=30")
    fleet.read(*["job"] * 4)
    assert fleet.epoch([1] * 4, ranks=4)[0] <= 1.02


def test_four_jobs_fetch_their_common_data_once(start: Start) -> None:
    """Four jobs in four orders fetch their common data once, and an engine that is soon back keeps its homes.
    The bytes that came in are those that were written.
    """
    fleet = start(4000, 1.25)
    fleet.read("a", "b", "c", "d")
    assert fleet.epoch([1, 2, 3, 4])[0] - fleet.late_share() <= 1.1
    late = fleet.late_share()
    assert fleet.epoch([5, 6, 7, 8])[0] - (fleet.late_share() - late) <= 0.08
    names = ("written_bytes", "store_bytes", "peer_bytes")
    written, store, peer = (fleet.total(name) for name in names)
    each = HEADER_BYTES + 4
    samples = written - written // (fleet.sample_bytes + each) * each
    # What a request had brought when it lost a race is in neither file.
    assert samples <= store + peer <= 1.01 * samples
    digests = {engine.statistics()["members_digest"] for engine in fleet.engines}
    fleet.engines[3].kill()
    fleet.engines[3].start()
    fleet.wait_for(lambda: {engine.statistics()["members_digest"] for engine in fleet.engines} == digests)
    assert len(digests) == 1
    late = fleet.late_share()
    assert fleet.epoch([9, 10, 11, 12])[0] - (fleet.late_share() - late) <= 0.08


def test_warming_all_engines_reads_the_data_once(start: Start, tmp_path: Path) -> None:
    """`streamer warm` on four engines reads the data from the store once, and the first epochs read next to nothing."""
    fleet = start(2000, 1.25)
    fleet.read("a", "b", "c", "d")
    # A service opens a manifest of its dataset only, which may be anywhere below the url.
    (manifest,) = (fleet.engines[0].root / "cache" / "manifests").glob("*/root.json")
    shutil.copytree(manifest.parent, tmp_path / "store" / "bucket" / "train" / "manifest")
    options = json.dumps(storage_options(fleet.endpoint))
    command = ["warm", URL, "--manifest", f"{URL}manifest", "--storage-options", options]
    warming = [
        subprocess.Popen(
            [sys.executable, "-m", "streamer", *command],
            env={**os.environ, "STREAMER_ENGINE": f"unix:{engine.socket}"},
            stdout=subprocess.DEVNULL,
        )
        for engine in fleet.engines
    ]
    assert [process.wait(300) for process in warming] == [0] * 4
    assert fleet.store.sent_since() - fleet.late_share() <= 1.02
    late = fleet.late_share()
    assert fleet.epoch([1, 2, 3, 4])[0] - (fleet.late_share() - late) <= 0.05


def test_engines_without_a_job_keep_their_share(tmp_path: Path) -> None:
    """A job on one of four nodes uses the caches of all: the others take the manifest from the engine that asks."""
    fleet = Fleet(tmp_path, 2000, 1.25)
    with running(fleet):
        fleet.readers = [Reader(fleet.engines[0], "a", "rank 0", fleet.endpoint)]
        fleet.store.sent_since()
        assert fleet.epoch([1])[0] - fleet.late_share() <= 1.02
        fleet.epoch([2])
        late = fleet.late_share()
        assert fleet.epoch([3])[0] - (fleet.late_share() - late) <= 0.05


def test_a_folder_stays_below_its_limit_while_peers_pull(start: Start) -> None:
    """A cache folder stays below its limit while peers read from it, deleted files that are still sent included."""
    fleet = start(2000, 0.6)
    fleet.read("a", "b", "c", "d")
    most, ended = [0] * 4, threading.Event()

    def watch() -> None:
        while not ended.wait(0.05):
            most[:] = [max(seen, engine.cached_bytes()) for seen, engine in zip(most, fleet.engines, strict=True)]

    watching = threading.Thread(target=watch)
    watching.start()
    for epoch in range(2):
        fleet.epoch([4 * epoch + job for job in range(4)])
    ended.set()
    watching.join()
    assert max(most) <= fleet.limit_bytes
    assert min(most) > 0.7 * fleet.limit_bytes


def test_a_peer_with_damaged_files_costs_no_sample(start: Start) -> None:
    """Damaged chunk files of a peer are rejected and counted, and their chunks are read from the store:
    flipped bits, another chunk's file, a file without its end.
    """
    fleet = start(800, 1.6)
    fleet.read(*["job"] * 4)
    fleet.epoch([1] * 4, ranks=4)
    files = sorted((fleet.engines[1].root / "cache" / "chunks").rglob("*.chunk"))
    for number, file in enumerate(files):
        content = bytearray(file.read_bytes())
        if number % 3 == 0:
            content[HEADER_BYTES + number] ^= 1
        elif number % 3 == 1:
            content = bytearray(files[number - 1].read_bytes())
        else:
            del content[-1]
        file.write_bytes(content)
    reader = fleet.readers.pop(1)  # its own engine's files are wrong as well; it would report and mend them
    reader.close()
    for number, one in enumerate(fleet.readers):
        one.begin(2, number, 3)
    assert sum(one.answer()["samples"] for one in fleet.readers) == fleet.objects
    wrong = sum(fleet.engines[number].statistics()["peer_wrong"] for number in (0, 2, 3))
    assert wrong >= 30


@pytest.mark.timing
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_peer_that_stops_holds_no_reader_up(start: Start, number: signal.Signals) -> None:
    """A peer that is killed or stopped makes no reader wait for a second, and is used again when it runs again."""
    fleet = start(1000, 1.6)
    fleet.read("a", "b", "c", "d")
    fleet.epoch([1, 2, 3, 4])
    fleet.readers.pop().close()
    for reader, seed in zip(fleet.readers, (5, 6, 7), strict=True):
        reader.begin(seed, pause=0.01)
    fleet.wait_for(lambda: fleet.engines[0].statistics()["needs"] > 1150)
    fleet.engines[3].kill(number)
    answers = [reader.answer() for reader in fleet.readers]
    assert [answer["samples"] for answer in answers] == [fleet.objects] * 3
    assert max(answer["longest"] for answer in answers) < 1.0
    assert all(engine.statistics()["peer_members_down"] == 1 for engine in fleet.engines[:3])
    if number == signal.SIGSTOP:
        fleet.engines[3].kill(signal.SIGCONT)
    else:
        fleet.engines[3].start()
    fleet.wait_for(lambda: all(engine.statistics()["peer_members_down"] == 0 for engine in fleet.engines[:3]), 70)


@as_root
@pytest.mark.timing
def test_a_lost_link_and_a_partition_cost_bytes_only(namespaces: Namespaces, start: Start) -> None:
    """A network partition in mid-epoch costs only bytes from the store; afterwards peers are used again."""
    fleet = start(1000, 1.6, namespaces)
    fleet.read("a", "b", "c", "d")
    fleet.epoch([1, 2, 3, 4])
    for reader, seed in zip(fleet.readers, (5, 6, 7, 8), strict=True):
        reader.begin(seed, pause=0.01)
    fleet.wait_for(lambda: fleet.engines[0].statistics()["needs"] > 1150)
    with namespaces.partition([0, 1], [2, 3]):
        answers = [reader.answer() for reader in fleet.readers]
        assert [answer["samples"] for answer in answers] == [fleet.objects] * 4
        assert max(answer["longest"] for answer in answers) < 1.0
        assert fleet.store.sent_since() > 0.5
        assert all(engine.statistics()["peer_members_down"] == 2 for engine in fleet.engines)
    fleet.wait_for(lambda: all(engine.statistics()["peer_members_down"] == 0 for engine in fleet.engines), 70)
    fleet.store.sent_since()
    assert fleet.epoch([9, 10, 11, 12])[0] <= 0.05
