"""Proves that each sample of an epoch came once: makes digests of samples, and compares them with those of an order.

Workers tally the samples of each batch (`batches/workers/batch_maker.py`), ranks keep records in states and logs
(`loader/rank/audit_records.py`), and `streamer audit` compares them (`tools/audit_command.py`) with those of an order
(`tools/audit_states.py`). Pure, no I/O.

The digest of samples is the sum, modulo 2^64, of a hash of (epoch, code) of each. It depends on which samples came and
how often, not on their order and not on who got them. So the sums of all ranks can be compared with the one that the
order of the epoch gives. Two different collections of samples have the same sum with a probability of 2^-64.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from streamer.config import counted
from streamer.errors import StateError
from streamer.order.hashing import TAG_AUDIT, Flags, Integers, Words, fold, fold_each

KEY = "audit"
"""The field of a state that holds the records."""

LOG_MARK = "state: "
"""Precedes a state, as JSON, in a line of the log."""

_MASK = (1 << 64) - 1
# The bits of a code that stand for its member, see `streamer.order.mix.streams`.
_MEMBER = 48
# Codes that are hashed at once; each array of them takes 8 MB.
_BLOCK = 1 << 20
# Most codes of a member among which a wrong sample is looked for, which takes 2 s and 0.5 GB.
_SEARCHED = 1 << 25


class Tally(msgspec.Struct, frozen=True, array_like=True):
    """Number and digest of some samples of one member.

    Attributes:
        member: number of the member in its mix; 0 for a dataset alone.
        samples, digest: number and digest of the samples that were made.
        skipped, skipped_digest: number and digest of those that could not be made, and that others replace.
    """

    member: int
    samples: int
    digest: int
    skipped: int = 0
    skipped_digest: int = 0

    def __add__(self, other: Tally) -> Tally:
        """Returns the tally of the samples of both, which are of the same member."""
        return Tally(
            member=self.member,
            samples=self.samples + other.samples,
            digest=(self.digest + other.digest) & _MASK,
            skipped=self.skipped + other.skipped,
            skipped_digest=(self.skipped_digest + other.skipped_digest) & _MASK,
        )

    @property
    def whole(self) -> tuple[int, int]:
        """Number and digest of all samples that had their turn."""
        return self.samples + self.skipped, (self.digest + self.skipped_digest) & _MASK


Tallies = Mapping[int, Tally]


def tallies(epoch: int, codes: Integers, skipped: Flags | None = None) -> tuple[Tally, ...]:
    """Returns a tally for each member that has some of these samples. Takes 0.1 us a sample for 256 of one member.

    Args:
        epoch: epoch of the samples.
        codes: (N,) codes of the samples.
        skipped: (N,) whether each sample could not be made; None means that all were made.
    """
    if not codes.size:
        return ()
    hashes = _hashes(epoch, codes)
    members = codes >> _MEMBER
    if skipped is None and members[0] == members[-1] and (members == members[0]).all():
        return (Tally(int(members[0]), len(codes), int(hashes.sum())),)
    arranged = members.argsort(kind="stable")
    members = members[arranged]
    hashes = hashes[arranged]
    out = np.zeros(len(codes), np.bool_) if skipped is None else skipped[arranged]
    starts = np.flatnonzero(np.diff(members, prepend=-1))
    columns = [
        np.add.reduceat(column, starts).tolist()
        for column in (~out * 1, np.where(out, np.uint64(0), hashes), out * 1, np.where(out, hashes, np.uint64(0)))
    ]
    return tuple(map(Tally, members[starts].tolist(), *columns))


def add_tallies(*groups: Tallies) -> dict[int, Tally]:
    """Returns the sums of tallies, by member."""
    total: dict[int, Tally] = {}
    for group in groups:
        for member, tally in group.items():
            total[member] = total[member] + tally if member in total else tally
    return total


class Record(msgspec.Struct, kw_only=True):
    """What one rank has delivered of one epoch without a break, as states and logs have it.

    Attributes:
        epoch: number of the epoch.
        start, stop: half-open positions of the epoch over all ranks, of which it delivered its part; padding counts.
        samples: number of positions of the whole epoch.
        dense: whether the samples of a whole epoch are the codes 0 to samples-1.
        rank, world_size: number of the rank, and number of ranks.
        tallies: a tally for each member that has some of the samples.
        skipped: names of samples that could not be made, and that others replace.
    """

    epoch: int
    start: int
    stop: int
    samples: int
    dense: bool
    rank: int
    world_size: int
    tallies: list[Tally] = msgspec.field(default_factory=list)
    skipped: list[str] = msgspec.field(default_factory=list)

    @classmethod
    def begin(cls, epoch: int, start: int, samples: int, place: tuple[int, int], *, dense: bool) -> Record:
        """Returns a record without samples; `place` is rank and world size."""
        rank, world_size = place
        return cls(epoch=epoch, start=start, stop=start, samples=samples, dense=dense, rank=rank, world_size=world_size)

    def add(self, stop: int, more: tuple[Tally, ...], skipped: list[str]) -> None:
        """Adds a batch that ends at position `stop`: its tallies, and the names of skipped samples."""
        self.stop = stop
        self.tallies = list(add_tallies({t.member: t for t in self.tallies}, {t.member: t for t in more}).values())
        self.skipped += skipped

    @property
    def by_member(self) -> Tallies:
        """The tallies by member."""
        return {tally.member: tally for tally in self.tallies}


def write_records(records: Sequence[Record]) -> dict[str, object]:
    """Returns the field of a state with these records, as a mapping; an empty one if there are no records.

    The field is one text. So a checkpoint that keeps each value of a state by itself, as torch.distributed.checkpoint
    does, loads with any number of records.
    """
    return {KEY: msgspec.json.encode(records).decode()} if records else {}


def read_records(saved: Mapping[str, object]) -> list[Record]:
    """Returns the records of a state; an empty list for one that was saved without any.

    Raises:
        StateError: the records are malformed.
    """
    text = saved.get(KEY, "[]")
    try:
        return msgspec.json.decode(text if isinstance(text, str) else "", type=list[Record])
    except (ValueError, RecursionError) as error:
        raise StateError(f"state: {KEY}={text!r} cannot be read: {error}", field=KEY) from error


class Codes(msgspec.Struct, frozen=True):
    """The codes of the samples of a member in one epoch, without the bits for the member.

    Attributes:
        samples: number of samples, which is that of the codes of one pass.
        count: the codes are 0 to count-1; a multiple of `samples` if there are several passes.
    """

    samples: int
    count: int


def whole_epoch(epoch: int, samples: int) -> dict[int, Tally]:
    """Returns the tally of the codes 0 to samples-1 of a dataset alone, as member 0."""
    return add_tallies(*({0: tallies(epoch, block)[0]} for block in _blocks(0, samples)))


def differences(epoch: int, expected: Tallies, found: Tallies, codes: Sequence[Codes]) -> Iterator[tuple[int, str]]:
    """Yields member and text of each difference between what an order has and what was delivered.

    Args:
        epoch: epoch of both tallies.
        expected: tallies of the order.
        found: tallies of what was delivered. Skipped samples count as delivered.
        codes: codes of each member, among which wrong samples are looked for; empty if the text only counts.
    """
    none = Tally(0, 0, 0)
    for member in sorted({*expected, *found}):
        wanted = expected.get(member, none).whole
        had = found.get(member, none).whole
        if wanted != had:
            more = (had[1] - wanted[1]) & _MASK
            known = codes[member] if member < len(codes) else Codes(1, 0)
            searched = known.count if known.count <= _SEARCHED else 0
            blocks = (_hashes(epoch, (member << _MEMBER) + block) for block in _blocks(0, searched))
            hashes = np.concatenate([np.empty(0, np.uint64), *blocks])
            yield member, _name_samples(hashes, had[0] - wanted[0], more, known.samples)


def _name_samples(hashes: Words, count: int, digest: int, samples: int) -> str:
    """Describes a difference: names the sample if one is wrong, or one came in place of another, else counts.

    Args:
        hashes: hash of each code of the member, by code, empty if no sample can be named.
        count: number of samples that came too often; negative if some are missing.
        digest: amount by which the digest is too large.
        samples: number of samples of a pass.
    """
    if count in (1, -1):
        one = np.flatnonzero(hashes == np.uint64(digest if count == 1 else -digest & _MASK))
        text = "sample {} came once too often" if count == 1 else "sample {} is missing"
        if one.size:
            return text.format(one[0] % samples)
    if count == 0 and hashes.size:
        arranged = np.argsort(hashes)
        instead = hashes - np.uint64(digest)
        places = np.searchsorted(hashes, instead, sorter=arranged) % len(hashes)
        pair = np.flatnonzero(hashes[arranged[places]] == instead)
        if pair.size:
            return f"sample {pair[0] % samples} came in place of sample {arranged[places[pair[0]]] % samples}"
    if count:
        return f"{counted(abs(count), 'samples')} too {'many' if count > 0 else 'few'} came"
    return "the number of samples is right, but some came in place of others"


def _hashes(epoch: int, codes: Integers) -> Words:
    return fold_each(fold(TAG_AUDIT, epoch), codes)


def _blocks(start: int, stop: int) -> Iterator[Integers]:
    for first in range(start, stop, _BLOCK):
        yield np.arange(first, min(stop, first + _BLOCK), dtype=np.int64)


Expected = Callable[[int], "Tallies | str"]
"""Returns the tallies of an order up to a position of the epoch, or a text that says why they cannot be computed."""

# Most skipped samples that an epoch names.
_NAMED = 20


class EpochAudit(msgspec.Struct, frozen=True, kw_only=True):
    """What the records prove of one epoch; all texts are for a user.

    Attributes:
        epoch: number of the epoch.
        text: how far the records reach, and by which ranks.
        faults: samples that came too often, not at all, or in place of others, and records that contradict each other.
        gaps: what is not proven, and why.
        skipped: names of samples up to there that could not be made, and that others replace, sorted.
    """

    epoch: int
    text: str
    faults: list[str]
    gaps: list[str]
    skipped: list[str]


class _JointRun(msgspec.Struct):
    """The records of the ranks that delivered the same positions together.

    Attributes:
        start, stop: half-open positions of the epoch.
        world_size: number of ranks.
        ranks: record of each rank that has one.
        faults: contradictions between records of one rank.
    """

    start: int
    stop: int
    world_size: int
    ranks: dict[int, Record] = msgspec.field(default_factory=dict)
    faults: list[str] = msgspec.field(default_factory=list)

    def add(self, record: Record) -> None:
        """Adds a record; a second one of the same rank with other tallies is a fault."""
        if self.ranks.setdefault(record.rank, record).tallies != record.tallies:
            self.faults.append(f"two records of rank {record.rank} of {self.words} differ")

    @property
    def missing(self) -> list[int]:
        """Ranks without a record."""
        return [rank for rank in range(self.world_size) if rank not in self.ranks]

    @property
    def words(self) -> str:
        """The positions and the number of ranks, in words."""
        return f"positions {self.start:,} to {self.stop:,} by {counted(self.world_size, 'ranks')}"


def audit_epoch(
    records: Sequence[Record], expected: Expected, codes: Sequence[Codes], names: Sequence[str]
) -> EpochAudit:
    """Compares the records of one epoch of one order with what the order has.

    Args:
        records: records of any ranks and runs, at least one. A record may come several times.
        expected: returns the tallies of the order; not called for a whole epoch of dense codes.
        codes: codes of each member in the epoch.
        names: names of the members of a mix, empty for a dataset alone.
    """
    by_place: dict[tuple[int, int, int], _JointRun] = {}
    for record in records:
        place = record.start, record.stop, record.world_size
        by_place.setdefault(place, _JointRun(*place)).add(record)
    runs = sorted(by_place.values(), key=lambda run: (run.start, run.stop))
    epoch = records[0].epoch
    samples = records[0].samples
    chain = _chain([run for run in runs if not run.missing])
    reached = min(chain[-1].stop, samples) if chain else 0
    faults = [fault for run in runs for fault in run.faults]
    gaps = _gaps(runs, chain, samples)
    if chain:
        had = add_tallies(*(record.by_member for run in chain for record in run.ranks.values()))
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


def describe_audit(found: EpochAudit) -> list[str]:
    """Returns the lines of text about an epoch, the verdict first."""
    head = "FAULT" if found.faults else "not proven" if found.gaps else "each once"
    more = len(found.skipped) - _NAMED
    return [
        f"epoch {found.epoch}: {head}; {found.text}",
        *(f"  {line}" for line in (*found.faults, *found.gaps)),
        *(f"  skipped: {name}" for name in found.skipped[:_NAMED]),
        *([f"  and {more} more"] if more > 0 else []),
    ]


def _chain(runs: Sequence[_JointRun]) -> list[_JointRun]:
    """Returns runs that follow each other from position 0, as far as any do."""
    begin: dict[int, list[_JointRun]] = defaultdict(list)
    for run in runs:
        begin[run.start].append(run)
    reached: dict[int, list[_JointRun]] = {0: []}
    for position in sorted({run.start for run in runs} | {0}):
        for run in begin[position] if position in reached else []:
            reached.setdefault(run.stop, [*reached[position], run])
    return reached[max(reached)]


def _gaps(runs: Sequence[_JointRun], chain: Sequence[_JointRun], samples: int) -> list[str]:
    """Returns what the records lack beyond the chain, in words: ranks, or positions before a later run."""
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
