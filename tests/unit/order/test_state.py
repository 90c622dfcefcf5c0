"""Tests of the state of a run: saved, checked and resumed."""

from __future__ import annotations

import json
import logging

import msgspec
import pytest

from streamer.errors import StateError
from streamer.order import OrderSpec, Resume, State
from streamer.order.growing import GrowingSpec
from streamer.order.plan import LastBatch

SPEC = OrderSpec("a" * 32, 17, "block", 8, 64)
STATE = State(SPEC, 2, 640, 64)


def test_a_state_survives_json() -> None:
    """A state passes through JSON, as it has plain values for any checkpoint format."""
    assert State.from_dict(json.loads(json.dumps(STATE.to_dict()))) == STATE


def test_a_state_says_everything_by_name() -> None:
    """A state has the order's id and parts, epoch, position, batch and format by name."""
    assert STATE.to_dict() == {
        "format": 1,
        "order_id": SPEC.order_id,
        "manifest": "a" * 32,
        "seed": 17,
        "shuffle": "block",
        "lanes": 8,
        "window": 64,
        "cut": "fixed",
        "epoch": 2,
        "position": 640,
        "global_batch": 64,
    }


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"manifest_digest": "b" * 32}, "manifest"),
        ({"seed": 18}, "seed"),
        ({"shuffle": "sample"}, "shuffle"),
        ({"lanes": 4}, "lanes"),
        ({"window": 63}, "window"),
        ({"cut": "redrawn"}, "lanes_by"),
        ({"cut": "by_key"}, "lanes_by"),
    ],
)
def test_a_state_of_another_order_names_the_part(change: dict[str, object], field: str) -> None:
    """A state of another order is a `StateError` with the part that differs and both values."""
    STATE.check(SPEC)
    with pytest.raises(StateError, match=f"state does not fit: {field} was ") as caught:
        STATE.check(msgspec.structs.replace(SPEC, **change))  # type: ignore[arg-type]
    assert caught.value.details["field"] == field
    assert caught.value.details["saved"] != caught.value.details["found"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"format": 2}, "format"),
        ({"format": None}, "format"),
        ({"order_id": "0" * 32}, "order_id"),
        ({"seed": 18}, "order_id"),
        ({"seed": "17"}, "seed"),
        ({"seed": True}, "seed"),
        ({"lanes": 0}, "lanes"),
        ({"shuffle": "blocks"}, "shuffle"),
        ({"manifest": None}, "manifest"),
        ({"epoch": -1}, "epoch"),
        ({"position": 1.5}, "position"),
        ({"global_batch": 0}, "global_batch"),
        ({"epoch": 2**70}, "epoch"),
        ({"position": 2**70}, "position"),
        ({"global_batch": 2**70}, "global_batch"),
        ({"seed": 2**70}, "seed"),
    ],
)
def test_a_damaged_state_names_the_field(change: dict[str, object], field: str) -> None:
    """A damaged state is a `StateError` with the field, and nothing of it is used."""
    with pytest.raises(StateError, match=field) as caught:
        State.from_dict({**STATE.to_dict(), **change})
    assert caught.value.details["field"] == field


def test_a_missing_field_is_named() -> None:
    """A field that a state does not have is named in the error."""
    saved = {name: value for name, value in STATE.to_dict().items() if name != "position"}
    with pytest.raises(StateError, match="position=None is not a number"):
        State.from_dict(saved)


def test_a_resume_goes_on_at_the_batch_not_delivered() -> None:
    """A resume with the batch of the run goes on at the first batch that was not delivered, by its number."""
    assert STATE.resume(1000, 64) == Resume(epoch=2, start=0, batch=10)


def test_another_batch_goes_on_at_the_position_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A resume with another batch goes on at the position, with a warning.

    Batch 6 of 100 from start 40 begins at position 640.
    """
    with caplog.at_level(logging.WARNING, logger="streamer.order.state"):
        assert STATE.resume(1000, 100) == Resume(epoch=2, start=40, batch=6)
    assert "global batch of 100 instead of 64" in caplog.text


@pytest.mark.parametrize(("samples", "last_batch"), [(640, "fill"), (640, "drop"), (600, "short"), (700, "drop")])
def test_a_finished_epoch_goes_on_with_the_next(samples: int, last_batch: LastBatch) -> None:
    """A state at the end of an epoch resumes with the next one.

    So it does where padding was delivered, or what is left is no whole batch and is dropped.
    """
    assert STATE.resume(samples, 64, last_batch) == Resume(epoch=3, start=0, batch=0)


GROWN = State(GrowingSpec(SPEC, reuse=3, epoch_samples=1280, least=4, admitted=(4, 2, 0)), 2, 640, 64)


def test_a_growing_state_has_the_log_of_admissions() -> None:
    """The state of a growing dataset has the log of admissions, a number per round, as plain values."""
    saved = json.loads(json.dumps(GROWN.to_dict()))
    assert (saved["kind"], saved["reuse"], saved["admitted"]) == ("growing", 3, [4, 2, 0])
    assert State.from_dict(saved) == GROWN
    assert GROWN.spec_of(GrowingSpec) == GROWN.spec


@pytest.mark.parametrize(
    ("name", "saved", "found", "message"),
    [
        ("reuse", 3, 2, "reuse was 3 when it was saved and is 2 now; pass the reuse the run began with"),
        ("epoch_samples", 1280, 640, "epoch_samples was 1280 when it was saved and is 640 now; pass the epoch_samples"),
    ],
)
def test_a_dataset_that_grows_otherwise_is_refused(name: str, saved: int, found: int, message: str) -> None:
    """A state of a dataset that grows in another way is refused with the name, both values and what to pass."""
    with pytest.raises(StateError, match=message):
        GROWN.check_value(name, saved, found)


@pytest.mark.parametrize("change", [{"admitted": None}, {"admitted": [4, "2"]}, {"reuse": 1.5}])
def test_a_log_that_is_none_is_refused(change: dict[str, object]) -> None:
    """A log of admissions that is malformed is refused."""
    with pytest.raises(StateError, match="state of a growing dataset"):
        State.from_dict({**GROWN.to_dict(), **change})


def test_parts_that_were_chosen_automatically_may_differ() -> None:
    """Parts of an order that were chosen automatically may differ from the state; given ones are compared."""
    other = msgspec.structs.replace(SPEC, lanes=4, window=32)
    STATE.check(other, left_out={"lanes", "window"})
    with pytest.raises(StateError, match="window was 64"):
        STATE.check(other, left_out={"lanes"})
