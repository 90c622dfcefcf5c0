"""A closed form in place of the simulator of `streamer plan`: how far apart the two are.

    python benchmarks/plan_formula.py

The first part is the 14 settings of plan.py, each cold and warm: 28 rows, of which the simulator's figures are those of
the newest results of plan.py. The second part is what that table does not have (several nodes, data in order, a small
window of requests, another cache), on 1,600 listed objects of 323 KB. A row agrees where seconds are within 10 %,
waiting and hits within 10 points, and bytes and requests of all epochs within 10 %.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import checkout  # noqa: F401
from plan import CASES, EPOCHS, make_setting
from report import kept

from streamer.batches.samples.opened import OpenedDataset
from streamer.errors import CacheFullError
from streamer.formats import detect
from streamer.indexing.build import build
from streamer.manifest.model import Extent, ObjectRecord
from streamer.order.spec import OrderSpec
from streamer.tools.planning.model import Link, Setting, TrainingJob
from streamer.tools.planning.simulate import simulate

RESULTS = Path(__file__).parent / "results"
OBJECTS = 1600
OBJECT_BYTES = 323_000


def compute_epoch(
    setting: Setting, spec: OrderSpec, *, total_bytes: int, requests: int, samples: int, chunks: int, warm: bool
) -> dict[str, float]:
    """Computes one epoch of all nodes from sizes, rates and times alone."""
    job = setting.job
    node_bytes = total_bytes / job.nodes
    # What must be open: the window of the shuffle, a chunk of each lane, and a batch of each rank.
    open_bytes = min(1.0, (spec.window + spec.lanes) / chunks) * node_bytes if job.shuffle else 0.0
    keeps = max(0.0, setting.cache_bytes - open_bytes) if setting.cache_bytes < node_bytes else node_bytes
    hit_share = min(1.0, keeps / node_bytes) if warm else 0.0
    fetched = 1 - hit_share
    steps = samples / (job.batch_size * job.nodes * job.ranks_per_node)
    computing = steps * job.step_seconds
    decoding = steps * job.batch_size * job.sample_seconds / max(job.workers, 1)
    waves = fetched * requests / job.nodes / setting.link.requests
    link = max(
        fetched * node_bytes / setting.link.bytes_per_second,
        waves * (setting.link.first_byte_seconds + node_bytes / requests / setting.link.connection_bytes_per_second),
        setting.engine.seconds(fetched * node_bytes, fetched * requests / job.nodes),
    )
    seconds = max(computing, decoding, link)
    return {
        "bytes": fetched * total_bytes,
        "requests": fetched * requests,
        "hits": hit_share,
        "seconds": seconds,
        "waiting": 1 - computing / seconds if seconds else 0.0,
    }


class Listing:
    """A store of raw objects that is only listed."""

    async def list(self, url: str) -> AsyncIterator[Sequence[ObjectRecord]]:
        yield [ObjectRecord(f"{url}{n:05}.jpg", OBJECT_BYTES, f"etag:{n:032x}") for n in range(OBJECTS)]

    async def read(self, extent: Extent) -> bytes:
        raise AssertionError("the listing is enough")


def compare_recorded() -> list[bool]:
    """Compares the rows of plan.py's table with the closed form."""
    text = max(RESULTS.glob("plan-2*.txt")).read_text()
    agrees = []
    for case in CASES:
        name_column = re.escape(f"{case.name:40}")
        figures = {
            what.strip(): float(planned.replace(",", ""))
            for what, planned in re.findall(rf"^{name_column}(.{{18}}) *([\d.,]+)", text, re.MULTILINE)
        }
        total_bytes, requests, samples = (516_732_800, 1600, 1600) if case.data == "raw" else (555_920_000, 535, 5000)
        chunks = requests
        setting = make_setting(case, int(case.cache_share * total_bytes))
        spec = OrderSpec.auto("0" * 32, [samples // chunks] * chunks, case.batch_size * case.ranks, 17, True)
        sizes = {"total_bytes": total_bytes, "requests": requests, "samples": samples, "chunks": chunks}
        epochs = [compute_epoch(setting, spec, **sizes, warm=warm) for warm in (False, True)]
        total = epochs[0]["bytes"] + (EPOCHS - 1) * epochs[1]["bytes"]
        asked = epochs[0]["requests"] + (EPOCHS - 1) * epochs[1]["requests"]
        in_all = max(abs(total / 1e6 / figures["MB in all"] - 1), abs(asked / figures["requests"] - 1))
        for name, epoch in zip(("cold", "warm"), epochs, strict=True):
            seconds = epoch["seconds"] / figures[f"{name} epoch, s"] - 1
            waiting = epoch["waiting"] - figures[f"{name} waiting, %"] / 100
            agrees.append(max(abs(seconds), abs(waiting), in_all) <= 0.1)
            print_row(f"{case.name}, {name}", in_all, seconds, waiting, agrees[-1])
    return agrees


def compare_more() -> list[bool]:
    """Compares settings that plan.py does not measure, each in its second epoch, with the simulator."""
    job = TrainingJob(batch_size=24, step_seconds=0.06, workers=2, epochs=2)
    link = Link(bytes_per_second=50e6)
    settings = {
        "2 nodes, half of a node's part": (replace(job, nodes=2, batch_size=12), link, 0.25),
        "4 nodes x 2 ranks, all of a node's part": (replace(job, nodes=4, ranks_per_node=2, batch_size=4), link, 0.32),
        "4 nodes x 2 ranks, half of a node's part": (replace(job, nodes=4, ranks_per_node=2, batch_size=4), link, 0.13),
        "8 ranks, half": (replace(job, ranks_per_node=8, batch_size=3), link, 0.5),
        "8 ranks, three quarters": (replace(job, ranks_per_node=8, batch_size=3), link, 0.75),
        "in order, half": (replace(job, shuffle=False), link, 0.5),
        "in order, a tenth": (replace(job, shuffle=False), link, 0.1),
        "batches of 200, half": (replace(job, batch_size=200), link, 0.5),
        "16 requests at a time": (job, replace(link, bytes_per_second=1e9, requests=16, first_byte_seconds=0.1), 0.5),
        "three quarters": (job, link, 0.75),
        "nine tenths": (job, link, 0.9),
        "slow decode, three quarters": (replace(job, sample_seconds=0.02), link, 0.75),
    }
    agrees = []
    with tempfile.TemporaryDirectory() as folder:
        store = Listing()
        chooser = detect.chooser("auto")
        opened = build("s3://b/raw/", Path(folder), lister=store, reader=store, choose_format=chooser)
        data = OpenedDataset(asyncio.run(opened), None)
        total_bytes = OBJECTS * OBJECT_BYTES
        for name, (each, path, share) in settings.items():
            setting = Setting(job=each, link=path, cache_bytes=int(share * total_bytes))
            try:
                simulated = simulate(data, setting).epochs[1]
            except CacheFullError:
                print(f"{name:44}the simulator refuses: too small a cache")
                continue
            world_batch = each.batch_size * each.nodes * each.ranks_per_node
            spec = OrderSpec.auto(data.digest, data.chunk_samples, world_batch, 17, each.shuffle)
            chunks = len(data.chunk_samples)
            sizes = {"total_bytes": total_bytes, "requests": OBJECTS, "samples": OBJECTS, "chunks": chunks}
            epoch = compute_epoch(setting, spec, **sizes, warm=True)
            hits = epoch["hits"] - simulated.hit_share
            seconds = epoch["seconds"] / simulated.seconds - 1
            waiting = epoch["waiting"] - simulated.waiting_share
            agrees.append(max(abs(hits), abs(seconds), abs(waiting)) <= 0.1)
            print_row(name, hits, seconds, waiting, agrees[-1])
    return agrees


def print_row(name: str, first: float, seconds: float, waiting: float, agrees: bool) -> None:
    print(f"{name:44}{first:+10.1%}{seconds:+10.1%}{waiting:+10.1%}  {'' if agrees else 'APART'}")


def main() -> None:
    with kept("plan_formula"):
        print(f"{'plan.py, against the simulator':44}{'in all':>10}{'seconds':>10}{'waiting':>10}")
        recorded = compare_recorded()
        print(f"{sum(recorded)} of {len(recorded)} rows agree\n")
        print(f"{'other settings, second epoch':44}{'hits':>10}{'seconds':>10}{'waiting':>10}")
        more = compare_more()
        print(f"{sum(more)} of {len(more)} rows agree")


if __name__ == "__main__":
    main()
