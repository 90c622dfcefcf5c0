"""The table and the picture of a run with peers."""

from __future__ import annotations

from pathlib import Path

import msgspec

from examples.fleet.run import FleetMeasured, Row
from streamer.config import format_bytes

HEADERS = (
    "epoch",
    "what happens",
    "nodes",
    "seconds",
    "samples",
    "from store",
    "from peers",
    "from disk",
    "store / data",
)
WORDS = ("what happens",)
# Three hues that differ also for those who do not see red and green apart (Okabe and Ito, 2008).
_COLOURS = {"store": "#d55e00", "peers": "#0072b2", "disk": "#b0b0b0"}


def table(measured: FleetMeasured) -> list[tuple[str, ...]]:
    """The rows below HEADERS."""
    return [_row(row, measured.dataset_bytes) for row in measured.rows]


def _row(row: Row, dataset_bytes: int) -> tuple[str, ...]:
    return (
        row.name,
        row.event,
        str(row.nodes),
        f"{row.seconds:.1f}",
        f"{row.samples:,}",
        format_bytes(row.store_bytes),
        format_bytes(row.used.peer_bytes),
        format_bytes(row.used.disk_bytes),
        f"{row.store_bytes / dataset_bytes:.2f}",
    )


def remarks(measured: FleetMeasured) -> list[str]:
    """What the table does not say."""
    return [
        f"two jobs read {format_bytes(measured.dataset_bytes)} each in every epoch, in another order; a node caches "
        f"{format_bytes(measured.cache_bytes)}",
        "store: bytes that it sent; peers, disk: bytes that the ranks used from there. What a node fetches because a "
        "peer needs it is in both columns",
    ]


def save(measured: FleetMeasured, folder: Path) -> tuple[Path, Path]:
    """Writes `fleet.json` and `fleet.png`; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    results, picture = folder / "fleet.json", folder / "fleet.png"
    results.write_bytes(msgspec.json.format(msgspec.json.encode(measured), indent=1) + b"\n")
    draw(measured, picture)
    return results, picture


def draw(measured: FleetMeasured, path: Path) -> None:
    """One bar for each epoch: from store, peers and disk, as multiples of the dataset."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 4.5), layout="constrained")
    places = range(len(measured.rows))
    bottom = [0.0] * len(measured.rows)
    for source, colour in _COLOURS.items():
        heights = [_bytes(row, source) / measured.dataset_bytes for row in measured.rows]
        axes.bar(places, heights, 0.7, bottom, color=colour, label=f"from {source}")
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    names = [f"{row.name.replace(', ', chr(10))}\n{row.event}" for row in measured.rows]
    axes.set_xticks(list(places), names, fontsize=8)
    axes.set_ylabel("bytes, in datasets")
    axes.set_title("Two jobs on four nodes: where the bytes of each epoch come from", loc="left")
    figure.legend(loc="outside lower center", ncols=len(_COLOURS), frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _bytes(row: Row, source: str) -> int:
    return {"store": row.store_bytes, "peers": row.used.peer_bytes, "disk": row.used.disk_bytes}[source]
