"""Engines that share their caches: what comes from the store and from peers, simulated with real policies and homes.

    python benchmarks/fleet.py [--chunks 4000] [--quick]

Prints tables and keeps them in benchmarks/results/fleet-<date>.txt. All figures are in D, the bytes of the dataset;
`f` is what one cache takes of it, S included. No byte is moved, and no time passes: see `testing.peer_simulation`.
The cut into lanes is fixed, except where it says redrawn; `alone` are engines that do not know each other.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import checkout  # noqa: F401
import numpy as np
from numpy.typing import NDArray
from report import kept

from tests.simulation.peers import PeerSimulation

EPOCHS = 3
Needs = list[NDArray[np.int64]]


def one_job(simulation: PeerSimulation, cut: int, epoch: int) -> Needs:
    """All engines read the dataset once together, as a cut of this number has it."""
    chunks, nodes = len(simulation.keys), len(simulation.nodes)
    parts = np.array_split(np.random.default_rng([3, cut]).permutation(chunks), nodes)
    return [np.random.default_rng([5, epoch, index]).permutation(part) for index, part in enumerate(parts)]


def own_jobs(simulation: PeerSimulation, epoch: int) -> Needs:
    """Each engine reads all of it, in an order of its own."""
    chunks = len(simulation.keys)
    return [np.random.default_rng([7, epoch, index]).permutation(chunks) for index in range(len(simulation.nodes))]


def steady(chunks: int) -> Iterator[str]:
    """One job: cold and warm epochs."""
    yield "one job        N    f    fN   bound   cold: store  peer   warm: store  peer   served max/mean"
    for nodes, share in ((2, 0.25), (2, 0.55), (4, 0.1), (4, 0.275), (4, 0.5), (16, 0.03), (16, 0.07), (16, 0.13)):
        for label, shared in (("alone", False), ("shared", True)):
            for cut in ("fixed", "redrawn"):
                simulation = PeerSimulation(nodes, chunks, share, shared=shared)
                found = [
                    simulation.epoch(one_job(simulation, epoch if cut == "redrawn" else 0, epoch))
                    for epoch in range(EPOCHS)
                ]
                limit = sum(
                    1 - node.policy.statistics().staging_bytes / node.policy.limit_bytes for node in simulation.nodes
                )
                bound = max(0.0, 1 - share * limit)
                cold, warm = found[0], found[-1]
                served = max(warm.served) / (sum(warm.served) / nodes or 1)
                yield (
                    f"{label:6} {cut:7} {nodes:2} {share:5.3f} {nodes * share:5.2f} {bound:6.3f}"
                    f"        {cold.store / chunks:6.3f} {cold.peer / chunks:5.2f}"
                    f"        {warm.store / chunks:6.3f} {warm.peer / chunks:5.2f}        {served:.2f}"
                )


CHANGES: dict[str, Callable[[int], tuple[list[int], int]]] = {
    "none": lambda nodes: (list(range(nodes)), 0),
    "one lost": lambda nodes: ([one for one in range(nodes) if one != nodes // 2], 0),
    "one replaced": lambda nodes: ([one for one in range(nodes) if one != nodes // 2], 1),
    "one joined": lambda nodes: (list(range(nodes)), 1),
    "x 1.5": lambda nodes: (list(range(nodes)), nodes // 2),
    "half": lambda nodes: (list(range(0, nodes, 2)), 0),
    "reordered": lambda nodes: (list(range(nodes))[::-1], 0),
}


def changed(chunks: int) -> Iterator[str]:
    """One job after a change: store / peer bytes of the first and the second epoch."""
    for nodes, share in ((4, 0.275), (16, 0.07)):
        yield f"after a change, N = {nodes}, fN = {nodes * share:.2f}: first epoch store/peer, second store/peer"
        for name, change in {**CHANGES, "other seed": CHANGES["none"]}.items():
            row = f"  {name:13}"
            for label, shared in (("alone", False), ("shared", True)):
                simulation = PeerSimulation(nodes, chunks, share, shared=shared)
                for epoch in range(EPOCHS):
                    simulation.epoch(one_job(simulation, 0, epoch))
                simulation.change(*change(nodes))
                cut = 1 if name == "other seed" else 0
                found = [simulation.epoch(one_job(simulation, cut, EPOCHS + epoch)) for epoch in range(2)]
                row += f" | {label} " + ", ".join(f"{one.store / chunks:.3f}/{one.peer / chunks:.2f}" for one in found)
            yield row


def several(chunks: int) -> Iterator[str]:
    """As many jobs as engines, each reads all of the dataset; all together."""
    yield "N = J jobs     fN        first epoch: store  peer   later: store   peer   served max/mean"
    for nodes, whole in ((4, 0.5), (4, 1.1), (16, 0.5), (16, 1.1), (16, 2.0)):
        for label, shared in (("alone", False), ("shared", True)):
            simulation = PeerSimulation(nodes, chunks, whole / nodes, shared=shared)
            found = [simulation.epoch(own_jobs(simulation, epoch)) for epoch in range(EPOCHS)]
            first, later = found[0], found[-1]
            served = max(later.served) / (sum(later.served) / nodes or 1)
            yield (
                f"{label:6} {nodes:2} {whole:9.1f}              {first.store / chunks:6.2f} {first.peer / chunks:5.2f}"
                f"         {later.store / chunks:6.3f} {later.peer / chunks:6.2f}        {served:.2f}"
            )


def main() -> None:
    """Runs everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=4000)
    parser.add_argument("--quick", action="store_true", help="1200 chunks, nothing is kept")
    arguments = parser.parse_args()
    chunks = 1200 if arguments.quick else arguments.chunks
    with kept("fleet", keep=not arguments.quick):
        for table in (steady, changed, several):
            print("", *table(chunks), sep="\n")


if __name__ == "__main__":
    main()
