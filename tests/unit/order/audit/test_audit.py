"""Tests of digests of what was delivered: they add up.

They say which sample came too often, not at all or in place of another.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from streamer.errors import StateError
from streamer.order.audit import (
    Codes,
    Record,
    Tally,
    add_tallies,
    audit_epoch,
    describe_audit,
    differences,
    read_records,
    tallies,
    whole_epoch,
    write_records,
)

SAMPLES, RANKS, EPOCH = 1000, 4, 3


def records_of(codes: np.ndarray, ranks: int = RANKS, start: int = 0, samples: int = SAMPLES) -> list[Record]:
    """Returns one record for each rank of codes that are dealt in batches of ten."""
    place = {"epoch": EPOCH, "start": start, "stop": start + len(codes), "samples": samples, "dense": True}
    found = [Record(**place, rank=rank, world_size=ranks) for rank in range(ranks)]
    for first in range(0, len(codes), 10):
        found[first // 10 % ranks].add(place["stop"], tallies(EPOCH, codes[first : first + 10]), [])
    return found


def unknown(stop: int) -> str:
    """Stands for an order that is not known: says that there is no manifest."""
    return "no manifest"


def audit_of(records: list[Record], expected=unknown):
    return audit_epoch(records, expected, [Codes(SAMPLES, SAMPLES)], [])


@pytest.mark.parametrize(
    "deal",
    [
        pytest.param(lambda order: records_of(order, 1), id="one rank"),
        pytest.param(lambda order: records_of(order), id="four ranks"),
        pytest.param(lambda order: records_of(order[:400]) + records_of(order[400:], 2, 400), id="four, then two"),
    ],
)
def test_sums_do_not_depend_on_order_ranks_or_batches(deal):
    """The digest of an epoch does not depend on order, ranks or batches.

    A shuffled epoch on one rank, on four, and on four and then two has the digest of 0 to n-1.
    """
    order, whole = np.random.default_rng(1).permutation(SAMPLES), whole_epoch(EPOCH, SAMPLES)
    records = deal(order)
    assert add_tallies(*(record.by_member for record in records)) == whole
    found = audit_of(records)
    assert not found.faults
    assert not found.gaps
    assert whole_epoch(EPOCH + 1, SAMPLES) != whole


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda codes: np.append(codes, 17), "sample 17 came once too often"),
        (lambda codes: codes[codes != 17], "sample 17 is missing"),
        (lambda codes: np.where(codes == 17, 23, codes), "sample 23 came in place of sample 17"),
        (lambda codes: codes[codes > 2], "3 samples too few came"),
        (lambda codes: np.concatenate([codes, codes[:4]]), "4 samples too many came"),
        (lambda codes: np.where(codes < 2, 5, codes), "some came in place of others"),
        (lambda codes: np.where(codes == 17, SAMPLES + 5, codes), "some came in place of others"),
    ],
)
def test_a_wrong_sample_is_found(change, text):
    """A sample that is missing, repeated or in place of another is a fault, and named where it is the only one."""
    codes = change(np.arange(SAMPLES))
    records = records_of(codes)
    for record in records:
        record.stop = SAMPLES
    found = audit_of(records)
    assert len(found.faults) == 1
    assert text in found.faults[0]
    assert "FAULT" in describe_audit(found)[0]


def test_every_single_error_changes_the_digest():
    """No two samples of an epoch have the same hash.

    Each repeated, missing or swapped one therefore changes the digest.
    """
    hashes = [tallies(EPOCH, np.array([code]))[0].digest for code in range(SAMPLES)]
    assert len({*hashes, 0}) == SAMPLES + 1


def test_a_sample_of_a_mix_is_named_by_its_member():
    """The digest of each member of a mix is compared by itself.

    A wrong sample is named by its member and its number in it.
    """
    first, second = np.arange(200), (1 << 48) + np.arange(100)
    codes = np.concatenate([first, second])
    wanted = {tally.member: tally for tally in tallies(EPOCH, codes)}
    assert [(tally.member, tally.samples) for tally in wanted.values()] == [(0, 200), (1, 100)]
    found = {tally.member: tally for tally in tallies(EPOCH, np.where(codes == 150, 151, codes))}
    sizes = [Codes(100, 300), Codes(100, 200)]
    assert list(differences(EPOCH, wanted, found, sizes)) == [(0, "sample 51 came in place of sample 50")]


def test_skipped_samples_have_had_their_turn():
    """Skipped samples count on their own, and with them the epoch is whole."""
    codes, skipped = np.arange(SAMPLES), np.zeros(SAMPLES, bool)
    skipped[[3, 500]] = True
    (tally,) = tallies(EPOCH, codes, skipped)
    assert (tally.samples, tally.skipped) == (SAMPLES - 2, 2)
    assert tally.whole == whole_epoch(EPOCH, SAMPLES)[0].whole
    assert tally.skipped_digest == tallies(EPOCH, np.array([3, 500]))[0].digest
    assert tallies(EPOCH, codes[:0]) == ()


def test_gaps_are_named():
    """A rank without a record, a run without its beginning, and an order that is not known are named as not proven."""
    order = np.arange(SAMPLES)
    assert "no record of rank 2" in audit_of([r for r in records_of(order) if r.rank != 2]).gaps[0]
    found = audit_of(records_of(order[400:], 2, 400))
    assert "positions 0 to 400: no record" in found.gaps[0]
    found = audit_of(records_of(order[:400]))
    assert found.gaps == ["no manifest"]
    assert describe_audit(found)[0].startswith(
        "epoch 3: not proven; 400 of 1,000 samples: positions 0 to 400 by 4 ranks"
    )


def test_part_of_an_epoch_is_compared_with_the_order():
    """A part of an epoch is compared with the order by the longest sequence of runs from position 0.

    Other records do not matter.
    """
    order = np.random.default_rng(2).permutation(SAMPLES)

    def expected(stop: int) -> dict[int, Tally]:
        return dict(enumerate(tallies(EPOCH, order[:stop])))

    records = records_of(order[:400]) + records_of(order[:600]) + records_of(order[400:800], 2, 400)
    for each in itertools.permutations((0, 4, 8)):
        mixed = [record for first in each for record in records[first : first + 4]]
        found = audit_of(mixed, expected)
        assert not found.faults
        assert found.text.startswith("800 of")


def test_records_that_contradict_each_other_are_a_fault():
    """Two different records of one rank are a fault, and the same record twice counts once."""
    records = records_of(np.arange(SAMPLES))
    assert not audit_of(records + records[:2]).faults
    other = records_of(np.arange(SAMPLES)[::-1])[:1]
    assert "two records of rank 0" in audit_of(records + other).faults[0]


def test_records_travel_in_a_state():
    """Records are kept in a state as one text; a state without them has none, and a malformed one is refused."""
    records = records_of(np.arange(SAMPLES))
    assert read_records(write_records(records)) == records
    assert write_records([]) == {}
    assert read_records({"epoch": 1}) == []
    for wrong in ("", "{}", '[{"epoch": "x"}]', 17, None):
        with pytest.raises(StateError, match="audit="):
            read_records({"audit": wrong})
