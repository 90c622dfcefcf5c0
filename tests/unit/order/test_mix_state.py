"""Tests of the state of a mix: saved, resumed and refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from streamer.errors import StateError
from streamer.order import OrderSpec, Resume, State
from streamer.order.growing import GrowingSpec
from streamer.order.mix import MixSpec
from tests.mixes import request, sources

SIZES = {"web": 5000, "books": 900}


def _spec(sizes: dict[str, int] = SIZES, **said: object) -> MixSpec:
    return request(list(sizes), **said).spec(sources(sizes), 48)


def _state(**said: object) -> State:
    return State(_spec(**said), 3, 480, 48)


def test_a_state_is_plain_values() -> None:
    """The state of a mix passes through JSON, and a field that is not known is ignored."""
    state = _state(weights=[(0, {"web": 1, "books": 2}), (5, {"web": 1, "books": 0})], seed=(1 << 64) - 1)
    assert State.from_dict(json.loads(json.dumps(state.to_dict()))) == state
    assert State.from_dict({**state.to_dict(), "workers": 4}) == state


def test_a_resume_goes_on_with_the_samples_left() -> None:
    """A state resumes at its batch, past the end with the next epoch, and with another batch size at its position."""
    state = _state()
    assert state.resume(5900, 48) == Resume(3, 0, 10)
    assert msgspec.structs.replace(state, position=5904).resume(5900, 48) == Resume(4, 0, 0)
    assert msgspec.structs.replace(state, position=490).resume(5900, 32) == Resume(3, 10, 15)
    assert msgspec.structs.replace(state, position=5880).resume(5900, 48, last_batch="drop") == Resume(4, 0, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 18}, "seed was 17 when it was saved and is 18 now; pass the seed"),
        ({"batching": "random"}, "batching was 'stratified'"),
        ({"lanes": 4}, r"lanes was 8 when it was saved and is 4 now; pass Order\(lanes="),
        ({"window": 64}, r"member web: window was 8 .* pass Order\(shuffle_window="),
        ({"repeat": {"web": 1, "books": 2}}, "member books: passes was 1 when it was saved and is 2 now"),
        ({"weights": {"web": 1, "books": 2}}, "member web: passes was 1"),
    ],
)
def test_another_mix_is_refused(change: dict[str, Any], message: str) -> None:
    """A state of another mix is refused with the part, its member, both values and what to do."""
    with pytest.raises(StateError, match=message) as refused:
        _state().check(_spec(**{"lanes": 8, **change}))
    assert "load_state_dict(state, strict=False)" in str(refused.value)


def test_other_members_are_refused() -> None:
    """A state is refused where a member is missing or has another manifest or seed."""
    state = _state()
    with pytest.raises(StateError, match="members was 'web, books' when it was saved and is 'web' now"):
        state.check(_spec({"web": 5000}))
    web, books = sources(SIZES)
    other = msgspec.structs.replace(books, manifest_digest="f" * 32)
    with pytest.raises(StateError, match=r"member books: manifest was '0+1' when it was saved and is 'f+' now"):
        state.check(request(list(SIZES)).spec([web, other], 48))
    other = msgspec.structs.replace(books, seed=17)
    with pytest.raises(StateError, match="member books: seed was 6 when it was saved and is 17 now"):
        state.check(request(list(SIZES)).spec([web, other], 48))


def test_other_proportions_are_refused() -> None:
    """A state of a mix with other weights, another length or other stages is refused.

    Weights are named as shares, lengths in samples, stages by their epochs.
    """
    even = {"web": 1, "books": 1}
    state = _state(weights=even, epoch_samples=4800)
    with pytest.raises(StateError, match=r"member web: weight from epoch 0 was '50\.0+%' .* is '75\.0+%' now"):
        state.check(_spec(weights={"web": 3, "books": 1}, epoch_samples=4800))
    with pytest.raises(StateError, match=r"samples of an epoch, from epoch 0 was 4800 .* is 9600 now"):
        state.check(_spec(weights=even, epoch_samples=9600))
    with pytest.raises(StateError, match="member web: weight from epoch 7 was not set when it was saved"):
        state.check(_spec(weights=[(0, even), (7, even)], epoch_samples=4800))


def test_the_same_mix_with_another_batch_size_goes_on() -> None:
    """A state of the same mix goes on with another batch size, whose automatic lanes and windows follow the state."""
    asked = request(list(SIZES), weights={"web": 2, "books": 1})
    state = State(asked.spec(sources(SIZES), 48), 3, 480, 48)
    spec = asked.spec(sources(SIZES), 20, like=state.spec)
    assert (spec.lanes, asked.spec(sources(SIZES), 20).lanes) == (8, 5)
    assert [member.order.window for member in spec.members] == [8, 8]
    state.check(spec)


def _dataset_state() -> dict[str, object]:
    return dict(State(OrderSpec("0" * 32, 5, "block", 8, 16), 0, 0, 48).to_dict())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 9}, "format 9 cannot be read"),
        ({"kind": None}, "manifest=None is not a text"),
        ({"kind": "other"}, "of 'other', which streamer"),
        ({"mix": None}, "Expected `object`, got `null`"),
        ({"mix": {"members": []}}, "state of a mix: Object missing required field"),
        ({"epoch": "3"}, "epoch='3' is not a number"),
        ({"position": -1}, "position=-1 is less than 0"),
        ({"order_id": "0" * 32}, "order_id '0+' does not belong to its parts"),
    ],
)
def test_what_is_no_state_is_refused(change: dict[str, Any], message: str) -> None:
    """A state that is malformed is refused with the reason."""
    with pytest.raises(StateError, match=message):
        State.from_dict({**_state().to_dict(), **change})


def test_a_state_is_of_a_mix_or_of_a_dataset() -> None:
    """A state of a mix is not taken for that of a dataset, nor a dataset's for that of a mix or a growing dataset."""
    alone = State.from_dict(_dataset_state())
    with pytest.raises(StateError, match=r"of a single dataset, not of a MixedDataset; load_state_dict\(state, strict"):
        alone.spec_of(MixSpec)
    with pytest.raises(StateError, match=r"of a single dataset, not of a StreamingDataset with growing="):
        alone.spec_of(GrowingSpec)
    mixed = State.from_dict(_state().to_dict())
    with pytest.raises(StateError, match="of a MixedDataset, not of a single dataset"):
        mixed.spec_of(OrderSpec)
    assert (alone.spec_of(OrderSpec), mixed.spec_of(MixSpec)) == (alone.spec, mixed.spec)


def test_a_state_whose_parts_are_no_mix_is_refused() -> None:
    """A state whose parts were changed by hand to no mix is refused."""
    state = _state().to_dict()
    state["mix"] = {**state["mix"], "window": 3}  # type: ignore[dict-item]
    with pytest.raises(StateError, match="window=3 a power of two"):
        State.from_dict(state)
