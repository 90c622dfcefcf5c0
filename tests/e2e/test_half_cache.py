"""A cache of half the data, with a real engine: hits at the bound, the limit held, the first epoch fetched once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from streamer.client.engine_client import EngineClient
from streamer.client.session import Session
from streamer.client.settings import ClientSettings
from streamer.manifest.table import Manifest
from streamer.order import EpochOrder, OrderSpec, RankPlan
from streamer.wire.messages import GetManifest, OpenSession
from streamer.wire.schedule import EpochSchedule

BATCH = 32
RANKS = 2
EPOCHS = 4
BLOCK_BYTES = 512


def make_data(tmp_path: Path, files: int) -> Path:
    """Makes files of 10 to 70 KB in 8 classes, six to a chunk."""
    random = np.random.default_rng(3)
    for number in range(files):
        path = tmp_path / "data" / f"class{number % 8}" / f"{number:04}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.bytes(int(random.integers(10_000, 70_000))))
    return tmp_path / "data"


class Watch(threading.Thread):
    """A thread that measures, again and again, what the folder really takes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(name="watch")
        self.folder, self.peak_bytes, self.looks = folder, 0, 0
        self._end = threading.Event()

    def run(self) -> None:
        while not self._end.is_set():
            self.peak_bytes = max(self.peak_bytes, taken_bytes(self.folder))
            self.looks += 1
            self._end.wait(0.02)  # leaves the interpreter to the reader

    def stop(self) -> None:
        self._end.set()
        self.join()


def taken_bytes(folder: Path) -> int:
    total = 0
    for path in (folder, *folder.rglob("*")):
        try:
            total += path.lstat().st_blocks * BLOCK_BYTES
        except FileNotFoundError:
            continue
    return total


def anonymous_mib(pid: int) -> float:
    """Returns a process's resident memory that is no file's."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")) / 1024


class Rank:
    """Stands for a rank: one session over the order's real schedule, which waits for steps and reads no chunk."""

    def __init__(self, client: EngineClient, manifest: Manifest, spec: OrderSpec, rank: int) -> None:
        self._manifest, self._spec, self._rank = manifest, spec, rank
        self._step = 0
        self.session: Session = client.open_session(
            OpenSession(0, "", dataset=manifest.digest, consumer=f"rank {rank}")
        )
        self._announced = 0
        self._extend(0)

    def _extend(self, epoch: int) -> None:
        plan = self._plan(epoch)
        schedule, base = plan.schedule(), epoch * plan.batches
        self.session.extend(EpochSchedule(epoch, schedule.chunk, schedule.first + base, schedule.last + base))

    def _plan(self, epoch: int) -> RankPlan:
        order = EpochOrder(self._spec, self._manifest.chunk_samples, epoch)
        return RankPlan(order, BATCH, RANKS, self._rank)

    def steps(self, epoch: int) -> Iterator[None]:
        """Goes through an epoch, batch by batch, and announces the next one early.

        The end of the first is not announced early, because what it fetches is counted.
        """
        plan = self._plan(epoch)
        if epoch == 1:
            self._extend(1)
        if 1 <= epoch < EPOCHS - 1:
            self._extend(epoch + 1)
        for _ in range(plan.batches):
            self.session.wait(self._step, 30)
            self._step += 1
            self.session.done(self._step)
            self.session.want(self._step + 3)
            yield


# 191 chunks of which each is 0.5 %: hits 0.392 to 0.397, bound 0.401 to 0.407 in three runs (2026-11-29). Epochs of
# 0.3 s are short beside the measurement of the link: once in four runs it came late, and hits were 0.359.
@pytest.mark.parametrize(
    ("files", "slack"), [(1200, 0.06), pytest.param(8000, 0.01, marks=[pytest.mark.slow, pytest.mark.timeout(300)])]
)
def test_hits_reach_the_bound_and_the_limit_holds(tmp_path, files, slack):
    """With a cache of half the data, hits from epoch 2 on reach (cache - staging) / data - slack.

    The cache's blocks stay within its limit, and epoch 1 fetches at most 1.02 times the data.
    """
    data = make_data(tmp_path, files)
    total = sum(path.stat().st_size for path in data.rglob("*.bin"))
    limit = total // 2
    settings = ClientSettings(
        cache_dir=tmp_path / "cache", runtime_dir=tmp_path / "run", cache_bytes=limit, grace_seconds=0.1
    )
    with EngineClient(settings) as client:
        manifest = Manifest.open(client.manifest(GetManifest(0, [str(data)], "auto")))
        spec = OrderSpec.auto(manifest.digest, manifest.chunk_samples, BATCH, 17, True)
        watch = Watch(tmp_path / "cache")
        watch.start()
        ranks = [Rank(client, manifest, spec, rank) for rank in range(RANKS)]
        after = []
        for epoch in range(EPOCHS):
            for _ in zip(*(rank.steps(epoch) for rank in ranks), strict=True):
                pass
            after.append(client.statistics())
        watch.stop()
        counts = client.statistics()
        engine_mib = anonymous_mib(client._connect().welcome.pid)
    assert manifest.chunks >= 150
    assert after[0]["store_bytes"] <= 1.02 * total
    # The least of all epochs: an epoch of these few files may be over before it is measured what the link needs.
    bound = min((one["limit_bytes"] - one["staging_bytes"]) / total for one in after)
    needed, hit = (after[-1][name] - after[0][name] for name in ("needed_bytes", "hit_bytes"))
    print(f"{manifest.chunks} chunks: hits {hit / needed:.3f} in {EPOCHS - 1} warm epochs, bound {bound:.3f}")
    assert hit / needed >= bound - slack
    assert bound >= 0.33, f"staging takes {counts['staging_bytes']} of {limit}"
    # Without its buffers; those are counted in full here, too.
    assert engine_mib <= 200 + counts["reserved_peak_bytes"] / (1 << 20)
    assert watch.looks > 20
    assert watch.peak_bytes <= limit
