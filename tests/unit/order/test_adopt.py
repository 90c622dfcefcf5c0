"""Tests of going on with a changed mix: `load_state_dict(state, strict=False)`."""

from __future__ import annotations

import pickle

import msgspec
import numpy as np
import pytest

from streamer.errors import StateError
from streamer.order import EpochOrder, OrderSpec, State
from streamer.order.adopt import adopt
from streamer.order.mix import MixSource, MixSpec
from tests.mixes import order, request, sources

SIZES = {"web": 5000, "books": 900}
EVEN = {"web": 1, "books": 1}


def _saved(position: int, epoch: int = 2, **said: object) -> tuple[MixSpec, dict[str, object]]:
    """Returns the spec of a mix, and the state of a run of it at a position."""
    spec = request(list(SIZES), **(said or {"weights": EVEN, "epoch_samples": 4800})).spec(sources(SIZES), 48)
    return spec, State(spec, epoch, position, 48).to_dict()


def _uses(spec: MixSpec, epoch: int, end: int | None = None) -> list[np.ndarray]:
    """Returns how often an epoch of a mix uses each sample, by member."""
    mixed = order(spec, sources(SIZES), epoch)
    codes = mixed.ordinals(np.arange(mixed.samples if end is None else end))
    members, ordinals = mixed.codes.members(codes), mixed.codes.ordinals(codes)
    return [np.bincount(ordinals[members == i], minlength=n) for i, n in enumerate(SIZES.values())]


def test_other_weights_go_on_at_the_end_of_an_epoch() -> None:
    """A mix with other weights goes on at the end of an epoch with every member exactly where it was.

    Both jobs together use every sample equally often or once more.
    """
    spec, state = _saved(4800)
    new = adopt(state, request(list(SIZES), weights={"web": 1, "books": 5}), sources(SIZES), 48)
    assert new.spec.origin_epoch == 3
    assert tuple(member.origin for member in new.spec.members) == spec.stream_starts(3) == (7200, 7200)
    assert new.notes == (
        "member web goes on in pass 1 after 2200 of 5000 samples",
        "member books goes on with pass 8",
    )
    uses = [_uses(spec, epoch) for epoch in range(3)] + [_uses(new.spec, epoch) for epoch in range(3, 6)]
    for counts in (sum(column) for column in zip(*uses, strict=True)):
        assert counts.max() - counts.min() <= 1


def test_in_the_middle_of_an_epoch_a_few_samples_come_again() -> None:
    """A mix that goes on in the middle of an epoch repeats a few samples, which the note counts."""
    uneven = {"web": 0.83, "books": 0.17}
    spec, state = _saved(912, weights=uneven, epoch_samples=4800)
    new = adopt(state, request(list(SIZES), weights=uneven), sources(SIZES), 48)
    drawn = np.array(spec.stream_starts(2)) + order(spec, sources(SIZES), 2).count_drawn(912)
    again = drawn - [member.origin for member in new.spec.members]
    assert again.tolist() == [5, 3]
    for note, many in zip(new.notes, again.tolist(), strict=True):
        assert f"; {many} samples come again" in note or many == 0


def test_whole_passes_begin_where_a_pass_begins() -> None:
    """A member in the middle of a pass is shared by weight where whole passes are asked for, as fairly."""
    _, state = _saved(4800)
    new = adopt(state, request(list(SIZES)), sources(SIZES), 48).spec
    assert [member.passes for member in new.members] == [0, 1]
    assert new.quotas(3) == (4992, 900)


def test_a_new_member_begins_and_a_missing_one_is_left_out() -> None:
    """A new member begins with its first pass, a missing one is left out, and the notes say both."""
    _, state = _saved(4800)
    members = [sources(SIZES)[0], MixSource("news", "e" * 32, np.full(40, 20), 9)]
    new = adopt(state, request(["web", "news"], weights={"web": 1, "news": 1}), members, 48)
    assert [member.origin for member in new.spec.members] == [7200, 0]
    assert new.notes[1:] == (
        "member news is new: it begins with its first pass",
        "member books is left out from now on",
    )


@pytest.mark.parametrize(
    ("change", "said", "note"),
    [
        ({"manifest_digest": "f" * 32}, {}, "begins pass 2 anew: manifest changed"),
        ({"seed": 99}, {}, "begins pass 2 anew: seed changed"),
        ({}, {"lanes": 4}, "begins pass 2 anew: lanes changed"),
        ({}, {"window": 96}, "begins pass 2 anew: window changed"),
    ],
)
def test_a_member_with_another_order_begins_a_pass(
    change: dict[str, object], said: dict[str, object], note: str
) -> None:
    """A member whose order has changed begins a pass.

    What is left of the running pass cannot be told from what was used.
    """
    _, state = _saved(4800)
    web, books = sources(SIZES)
    members = [msgspec.structs.replace(web, **change), books]
    new = adopt(state, request(list(SIZES), weights=EVEN, **said), members, 48)
    assert new.spec.members[0].origin == 10_000
    assert new.notes[0] == f"member web {note}"


def test_a_grown_member_goes_on_with_its_next_pass_of_all_samples() -> None:
    """A member that has grown goes on with its next pass of all samples.

    Pass numbers go on, and with them the transforms' random numbers.
    """
    _, state = _saved(4800)
    grown = MixSource("web", "f" * 32, np.full(300, 20), 5)
    new = adopt(state, request(list(SIZES), weights=EVEN), [grown, sources(SIZES)[1]], 48)
    assert (new.spec.members[0].origin, new.spec.members[0].samples) == (2 * 6000, 6000)


def test_the_state_of_a_dataset_goes_on_as_its_member() -> None:
    """The state of a dataset in the middle of its pass goes on in a mix with the rest of the pass, each sample once."""
    web = sources(SIZES)[0]
    spec = OrderSpec.auto(web.manifest_digest, web.chunk_samples, 48, web.seed)
    saved = State(spec, 1, 4000, 48)
    new = adopt(saved.to_dict(), request(list(SIZES), weights={"web": 10, "books": 1}), sources(SIZES), 48)
    assert new.spec.origin_epoch == 2
    assert [member.origin for member in new.spec.members] == [9000, 0]
    before = EpochOrder(spec, web.chunk_samples, 1).ordinals(np.arange(4000))
    mixed = order(new.spec, sources(SIZES), 2)
    codes = mixed.ordinals(np.arange(mixed.samples))
    own = codes[mixed.codes.members(codes) == 0]
    after = mixed.codes.ordinals(own[mixed.codes.turns(own) == 0])
    assert sorted([*before.tolist(), *after.tolist()]) == list(range(5000))


def test_the_state_of_a_dataset_that_is_no_member_is_refused() -> None:
    """The state of a dataset whose manifest and seed no member has is refused."""
    saved = State(OrderSpec("f" * 32, 5, "block", 8, 16), 0, 0, 48).to_dict()
    with pytest.raises(StateError, match=r"which is no member of the mix: \['web', 'books'\]"):
        adopt(saved, request(list(SIZES)), sources(SIZES), 48)


def test_a_run_that_has_not_begun_an_epoch_begins_it_changed() -> None:
    """A run that has used nothing of an epoch begins this epoch with the changed mix."""
    _, state = _saved(0)
    assert adopt(state, request(list(SIZES), weights=EVEN), sources(SIZES), 48).spec.origin_epoch == 2


@pytest.mark.parametrize(
    "said", [{}, {"repeat": {"web": 2, "books": 0.5}}, {"weights": [(0, EVEN), (4, {"web": 1, "books": 0})]}]
)
def test_a_continued_mix_is_resumed_like_any_other(said: dict[str, object]) -> None:
    """The state of a changed mix holds where it began, so that the same request gives the same spec."""
    _, state = _saved(960)
    asked = request(list(SIZES), **said)
    new = adopt(state, asked, sources(SIZES), 48).spec
    saved = State.from_dict(State(new, 4, 480, 48).to_dict())
    saved.check(asked.spec(sources(SIZES), 48, like=saved.spec))
    again = adopt(saved.to_dict(), asked, sources(SIZES), 48).spec
    assert again.origin_epoch == 5


def test_a_spec_and_a_request_travel_to_other_processes() -> None:
    """A pickled spec of a mix is equal and has the same id, and a pickled request gives the same spec."""
    spec, _ = _saved(0)
    asked = request(list(SIZES), weights=EVEN)
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert pickle.loads(pickle.dumps(spec)).order_id == spec.order_id
    assert pickle.loads(pickle.dumps(asked)).spec(sources(SIZES), 48) == asked.spec(sources(SIZES), 48)
