"""Whether the records of all ranks have every sample of an epoch once. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import msgspec

from streamer.config import counted
from streamer.order.audit.tallies import Codes, Record, Tallies, added, differences, whole_epoch

Expected = Callable[[int], "Tallies | str"]
"""The tallies of an order up to a position of the epoch; a text: why they cannot be computed."""

# Most skipped samples that an epoch names.
_NAMED = 20


class EpochAudit(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one epoch.

    Attributes:
        epoch: the epoch.
        text: how far the records reach, and by which ranks.
        faults: samples that came too often, not at all, or in place of others; and records that contradict each other.
        gaps: what is not proven, and why.
        skipped: names of samples that others replace.
    """

    epoch: int
    text: str
    faults: list[str]
    gaps: list[str]
    skipped: list[str]


class _Run(msgspec.Struct):
    """The records of the ranks that delivered the same positions together."""

    start: int
    stop: int
    world_size: int
    ranks: dict[int, Record] = msgspec.field(default_factory=dict)
    faults: list[str] = msgspec.field(default_factory=list)

    def add(self, record: Record) -> None:
        """Adds a record; a second one of the same rank must be equal."""
        if self.ranks.setdefault(record.rank, record).tallies != record.tallies:
            self.faults.append(f"two records of rank {record.rank} of {self.words} differ")

    @property
    def missing(self) -> list[int]:
        """The ranks of which there is no record."""
        return [rank for rank in range(self.world_size) if rank not in self.ranks]

    @property
    def words(self) -> str:
        """The positions and the ranks."""
        return f"positions {self.start:,} to {self.stop:,} by {counted(self.world_size, 'ranks')}"


def audit_epoch(
    records: Sequence[Record], expected: Expected, codes: Sequence[Codes], names: Sequence[str]
) -> EpochAudit:
    """Compares the records of one epoch of one order with what the order has.

    Args:
        records: Records of any ranks and runs, at least one, also repeated.
        expected: Tallies of the order.
        codes: Codes of each member in the epoch.
        names: Names of the members of a mix; empty outside one.
    """
    runs = _runs(records)
    epoch = records[0].epoch
    samples = records[0].samples
    chain = _chain([run for run in runs if not run.missing])
    reached = min(chain[-1].stop, samples) if chain else 0
    faults = [fault for run in runs for fault in run.faults]
    gaps = _gaps(runs, chain, samples)
    if chain:
        had = added(*(record.by_member for run in chain for record in run.ranks.values()))
        whole = reached == samples and records[0].dense
        wanted = whole_epoch(epoch, samples) if whole else expected(reached)
        if isinstance(wanted, str):
            gaps.append(wanted)
        else:
            for member, text in differences(epoch, wanted, had, codes):
                faults.append(f"{names[member]}: {text}" if names else text)
    skipped = sorted({name for run in chain for record in run.ranks.values() for name in record.skipped})
    by = ", then ".join(run.words for run in chain) or "nothing"
    return EpochAudit(
        epoch=epoch,
        text=f"{reached:,} of {counted(samples, 'samples')}: {by}",
        faults=faults,
        gaps=gaps,
        skipped=skipped,
    )


def shown(found: EpochAudit) -> list[str]:
    """The lines for an epoch."""
    head = "FAULT" if found.faults else "not proven" if found.gaps else "each once"
    more = len(found.skipped) - _NAMED
    return [
        f"epoch {found.epoch}: {head}; {found.text}",
        *(f"  {line}" for line in (*found.faults, *found.gaps)),
        *(f"  skipped: {name}" for name in found.skipped[:_NAMED]),
        *([f"  and {more} more"] if more > 0 else []),
    ]


def _runs(records: Sequence[Record]) -> list[_Run]:
    runs: dict[tuple[int, int, int], _Run] = {}
    for record in records:
        place = record.start, record.stop, record.world_size
        runs.setdefault(place, _Run(*place)).add(record)
    return sorted(runs.values(), key=lambda run: (run.start, run.stop))


def _chain(runs: Sequence[_Run]) -> list[_Run]:
    """The runs that follow each other from position 0 as far as possible."""
    begin: dict[int, list[_Run]] = defaultdict(list)
    for run in runs:
        begin[run.start].append(run)
    reached: dict[int, list[_Run]] = {0: []}
    for position in sorted({run.start for run in runs} | {0}):
        for run in begin[position] if position in reached else []:
            reached.setdefault(run.stop, [*reached[position], run])
    return reached[max(reached)]


def _gaps(runs: Sequence[_Run], chain: Sequence[_Run], samples: int) -> list[str]:
    """What the chain does not have."""
    reached = chain[-1].stop if chain else 0
    found = []
    for run in runs:
        if run.missing and run.stop > reached:
            ranks = ", ".join(map(str, run.missing))
            found.append(f"{run.words}: no record of rank {ranks}; give the states or logs of all ranks")
    if not found and any(run.start > reached for run in runs):
        after = min(run.start for run in runs if run.start > reached)
        found.append(f"positions {reached:,} to {after:,}: no record; give the states or logs of the run before, too")
    return found
