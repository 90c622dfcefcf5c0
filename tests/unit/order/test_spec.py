"""Tests of what fixes an order, and of the automatic choice of lanes and window."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from streamer.errors import ConfigError, ManifestError
from streamer.order.spec import OrderSpec, auto_lanes, auto_window, shuffle_mode

SPEC = OrderSpec("a" * 32, 17, "block", 8, 64)


def test_equal_parts_have_equal_ids() -> None:
    """Orders with equal parts have equal ids."""
    assert OrderSpec("a" * 32, 17, "block", 8, 64).order_id == SPEC.order_id


@pytest.mark.parametrize(
    "change",
    [
        {"manifest_digest": "b" * 32},
        {"seed": 18},
        {"shuffle": "sample"},
        {"lanes": 4},
        {"window": 63},
        {"cut": "redrawn"},
    ],
)
def test_every_part_changes_the_id(change: dict[str, str | int]) -> None:
    """Every part of an order changes its id."""
    assert msgspec.structs.replace(SPEC, **change).order_id != SPEC.order_id  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("chunks", "batch", "lanes", "window"),
    [
        (1, 1, 1, 1),
        (1, 256, 1, 1),
        (100, 256, 2, 6),
        (1_000, 256, 8, 62),
        (17_100, 256, 8, 256),
        (17_100, 1024, 16, 1024),
        (17_100, 1536, 24, 1024),
        (100_000, 16_384, 256, 1024),
        (100_000, 7 * 13, 7, 91),
        (100_000, 13, 1, 64),
        (100_000, 8, 8, 64),
    ],
)
def test_auto_follows_the_rule_of_the_design(chunks: int, batch: int, lanes: int, window: int) -> None:
    """The automatic lanes are the largest divisor of B not above min(max(8, min(256, B//64)), M//32).

    The automatic window K has its bounds.
    """
    spec = OrderSpec.auto("m", np.ones(chunks, dtype=np.int64), batch, 0)
    assert (spec.lanes, spec.window) == (lanes, window)
    assert (auto_lanes(chunks, batch), auto_window(chunks, batch)) == (lanes, window)


def test_overrides_replace_the_automatic_choice() -> None:
    """Given lanes and window are taken as they are in place of the automatic ones."""
    spec = OrderSpec.auto("m", np.ones(5, dtype=np.int64), 64, 0, lanes=24, window=100)
    assert (spec.lanes, spec.window, spec.lane_window) == (24, 100, 4)


def test_empty_chunks_do_not_count() -> None:
    """Chunks without samples do not count for lanes and window, as they cannot be mixed."""
    sizes = np.zeros(6400, dtype=np.int64)
    sizes[::64] = 3
    assert OrderSpec.auto("m", sizes, 256, 0) == OrderSpec.auto("m", np.full(100, 3), 256, 0)


def test_without_shuffle_there_is_one_lane() -> None:
    """Without shuffle an order has one lane and a window of one, and refuses others."""
    spec = OrderSpec.auto("m", np.ones(1000, dtype=np.int64), 256, 0, shuffle=False)
    assert (spec.shuffle, spec.lanes, spec.window) == ("none", 1, 1)
    with pytest.raises(ConfigError, match="no meaning with shuffle=False"):
        OrderSpec.auto("m", np.ones(1000, dtype=np.int64), 256, 0, shuffle=False, lanes=4)


def test_no_samples_is_an_error_of_the_manifest() -> None:
    """A dataset without samples has no order, which is a `ManifestError`."""
    with pytest.raises(ManifestError, match="no samples in 3 chunks"):
        OrderSpec.auto("m", np.zeros(3, dtype=np.int64), 256, 0)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"seed": -1}, "seed"),
        ({"seed": 1 << 64}, "seed"),
        ({"lanes": 0}, "lanes"),
        ({"window": 0}, "shuffle_window"),
        ({"shuffle": "blocks"}, "shuffle"),
        ({"cut": "new"}, "cut"),
    ],
)
def test_a_part_outside_its_rule_is_named(change: dict[str, str | int], field: str) -> None:
    """A part of an order outside its rule is a `ConfigError` with the field as the user writes it."""
    with pytest.raises(ConfigError, match=field) as caught:
        msgspec.structs.replace(SPEC, **change)  # type: ignore[arg-type]
    assert caught.value.details["field"] == field


def test_a_batch_of_nothing_is_refused() -> None:
    """A batch size of 0 is refused."""
    with pytest.raises(ConfigError, match="batch_size=0"):
        OrderSpec.auto("m", np.ones(3, dtype=np.int64), 0, 0)


def test_shuffle_is_read_as_users_write_it() -> None:
    """`shuffle=True` and `False` are words for "block" and "none"."""
    words: list[bool | str] = [True, False, "block", "sample", "none"]
    assert [shuffle_mode(w) for w in words] == ["block", "none", "block", "sample", "none"]
