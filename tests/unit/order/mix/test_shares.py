"""Tests of the shares of a mix as a user says them."""

from __future__ import annotations

from typing import Any

import pytest

from streamer.errors import ConfigError
from streamer.order.mix import Shares, Weights

NAMES = ["web", "books"]
SIZES = {"web": 1000, "books": 300}


def _amount(**said: Any) -> Any:
    return Shares.from_arguments(NAMES, **said).amounts(SIZES)[0]


def test_without_a_word_every_sample_comes_once() -> None:
    """A mix without shares makes one whole pass of each member."""
    amount = _amount()
    assert (amount.passes, amount.weights, amount.samples) == ((1, 1), (0, 0), 0)


@pytest.mark.parametrize("scale", [1, 10, 0.001])
def test_weights_have_any_scale(scale: float) -> None:
    """Only the ratio of weights counts."""
    weights = _amount(weights={"books": 0.25 * scale, "web": 0.75 * scale}).weights
    assert weights == (3 << 30, 1 << 30)


def test_an_epoch_of_weights_has_as_many_samples_as_the_members_with_weight() -> None:
    """An epoch by weights has as many samples as the members with a weight have, unless its length is given."""
    assert _amount(weights={"web": 1, "books": 2}).samples == 1300
    assert _amount(weights={"web": 1, "books": 0}).samples == 1000
    assert _amount(weights=Weights({"web": 1, "books": 2}, epoch_samples=77)).samples == 77


def test_an_epoch_can_stop_with_the_first_or_the_last_pass() -> None:
    """`stopping_strategy=` ends an epoch with the first or the last member's pass.

    At equal weights of 1,000 and 300 samples that is 300 or 1,000 of each.
    """
    even = {"web": 1, "books": 1}
    assert _amount(weights=Weights(even, stopping_strategy="first_exhausted")).samples == 600
    assert _amount(weights=Weights(even, stopping_strategy="all_exhausted")).samples == 2000


def test_repeat_gives_whole_passes_or_exact_parts() -> None:
    """`repeat=` gives whole passes where it is a whole number, and exact shares over epochs where it is not."""
    amount = _amount(repeat={"web": 0.25, "books": 2})
    assert (amount.passes, amount.weights, amount.samples) == ((0, 2), (250 << 16, 0), 250)
    assert _amount(repeat=3).passes == (3, 3)


def test_choose_gives_samples() -> None:
    """`choose=` gives numbers of samples, and 0 leaves a member out."""
    amount = _amount(choose={"web": 40, "books": 0})
    assert (amount.weights, amount.samples) == ((40 << 16, 0), 40)


def test_temperature_goes_from_sizes_to_equal_shares() -> None:
    """`temperature=1` gives shares by size, and a large one equal shares."""
    by_size, equal = (_amount(weights=Weights(temperature=t)).weights for t in (1.0, 1e9))
    assert by_size[0] / by_size[1] == pytest.approx(1000 / 300)
    assert equal[0] / equal[1] == pytest.approx(1)


def test_weights_change_by_stages_of_epochs() -> None:
    """Stages of weights hold from their epoch on."""
    stages = Shares.from_arguments(NAMES, weights=[(0, {"web": 1, "books": 0}), (5, {"web": 1, "books": 1})]).amounts(
        SIZES
    )
    assert [(stage.epoch, stage.weights) for stage in stages] == [(0, (1 << 32, 0)), (5, (1 << 31, 1 << 31))]


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            {"weights": {"web": 1, "news": 1}},
            r"\['news'\], which are not members, and none for the members \['books'\]",
        ),
        ({"weights": {"web": 1}}, r"^weights has none for the members \['books'\] \(0 leaves"),
        (
            {"weights": {"web": 1, "books": 1, "news": 1}},
            r"^weights has values for \['news'\], which are not members; members",
        ),
        ({"weights": {"web": 1, "books": -1}}, "books=-1 is not a number of at least 0"),
        ({"weights": {"web": 1, "books": float("nan")}}, "books=nan is not a number"),
        ({"weights": {"web": 1, "books": float("inf")}}, "books=inf is not a number"),
        ({"weights": {"web": 1, "books": "2"}}, "books='2' is not a number"),
        ({"weights": {"web": 0, "books": 0}}, "leaves every member out"),
        ({"weights": 3}, "weights=3 must be a mapping, or"),
        ({"weights": [(1, {"web": 1, "books": 1})]}, "must be a mapping, or"),
        ({"weights": [(0, {"web": 1, "books": 1}), (0, {"web": 1, "books": 1})]}, "with ascending epochs"),
        ({"weights": [(0, {"web": 1, "books": 1}), (9, {"web": 1, "books": 1}, "linear")]}, "with ascending epochs"),
        ({"repeat": {"web": 1}}, "none for the members"),
        ({"choose": {"web": 1.5, "books": 1}}, "not a whole number of samples"),
        ({"weights": {"web": 1, "books": 1}, "repeat": 2}, "weights and repeat both fix the shares"),
        ({"weights": Weights(temperature=2), "repeat": 2}, "weights and repeat both fix the shares"),
        ({"weights": Weights(temperature=2), "choose": {"web": 1, "books": 1}}, "weights and choose both fix"),
        ({"weights": Weights({"web": 1}, epoch_samples=9)}, r"none for the members \['books'\]"),
    ],
)
def test_what_is_no_proportion_is_refused(said: dict[str, Any], message: str) -> None:
    """Shares that are outside the rules are refused with the argument and its value."""
    with pytest.raises(ConfigError, match=message):
        Shares.from_arguments(NAMES, **said)


def test_shares_of_the_bytes_are_shares_of_the_samples_over_their_mean_size() -> None:
    """Shares of the bytes are shares of the samples by their mean size.

    Samples of web have 1,000 bytes, of books 9,000: half of the bytes are nine samples of web for one of books.
    """
    sizes = {"web": 1_000_000, "books": 2_700_000}

    def amount(**said: Any) -> Any:
        return Shares.from_arguments(NAMES, weights=Weights(unit="bytes", **said)).amounts(SIZES, sizes)[0]

    web, books = amount(weights={"web": 1, "books": 1}).weights
    assert web == pytest.approx(9 * books, rel=1e-8)
    assert amount(weights={"web": 1, "books": 1}, stopping_strategy="first_exhausted").samples == 1111
    assert (
        amount(temperature=1).weights
        == Shares.from_arguments(NAMES, weights=Weights(temperature=1)).amounts(SIZES)[0].weights
    )
    web, books = amount(temperature=1e9).weights
    assert web == pytest.approx(9 * books, rel=1e-6)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({}, "Weights has neither weights nor temperature"),
        ({"epoch_samples": 9}, "Weights has neither weights nor temperature"),
        ({"unit": "bytes"}, "Weights has neither weights nor temperature"),
        ({"weights": {"web": 1}, "temperature": 2}, "Weights has both weights and temperature"),
        ({"temperature": 0}, "temperature=0 is not a positive number"),
        ({"temperature": float("inf")}, "temperature=inf is not a positive number"),
        ({"temperature": 1, "stopping_strategy": "sometimes"}, "stopping_strategy='sometimes' must be one of"),
        ({"temperature": 1, "stopping_strategy": "first_exhausted", "epoch_samples": 9}, "pass one"),
        ({"temperature": 1, "epoch_samples": 0}, "epoch_samples=0 must be at least 1"),
        ({"temperature": 1, "unit": "tokens"}, "unit='tokens' must be one of"),
    ],
)
def test_weights_that_cannot_be_are_refused_at_once(said: dict[str, Any], message: str) -> None:
    """`Weights` outside the rules are refused when they are made."""
    with pytest.raises(ConfigError, match=message):
        Weights(**said)


def test_weights_are_shown_with_their_options() -> None:
    """The `repr` of `Weights` has all options."""
    shown = repr(Weights({"web": 2}, epoch_samples=9))
    assert (
        shown
        == "Weights(weights={'web': 2}, temperature=None, unit='samples', epoch_samples=9, stopping_strategy=None)"
    )
