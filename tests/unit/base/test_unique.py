"""The unique values of a column equal numpy's, without the modules that numpy's function imports."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.base.sorting import unique, unique_inverse

COLUMNS = st.lists(st.integers(-5, 5), max_size=30).map(lambda values: np.array(values, np.int64)) | st.lists(
    st.binary(max_size=2), max_size=30
).map(lambda values: np.array(values, "S16"))


@given(COLUMNS)
def test_it_is_what_numpy_finds(values):
    """The unique values, first places and numbers are those of `numpy.unique`, for integers and byte strings."""
    expected = np.unique(values, return_index=True, return_inverse=True)
    for mine, numpys in zip(unique_inverse(values), expected, strict=True):
        np.testing.assert_array_equal(mine, numpys)
    np.testing.assert_array_equal(unique(values), expected[0])
    assert unique(values).dtype == values.dtype


PLANNED = """
import sys
import numpy as np
from streamer.cache.policy.cache_policy import CachePolicy
from streamer.order.epoch import EpochOrder
from streamer.order.plan import RankPlan
from streamer.order.spec import OrderSpec

sizes = np.full(40, 25)
spec = OrderSpec.auto("d" * 32, sizes, 64, 0, "block")
plan = RankPlan(EpochOrder(spec, sizes, 0), 64, 1, 0)
plan.schedule(0)
plan.batch(0)
policy = CachePolicy(1 << 30)
policy.add_dataset("d" * 32, sizes * 1000, np.arange(640, dtype=np.uint8).reshape(40, 16))
print(*sys.modules)
"""


@pytest.fixture(scope="module")
def imported():
    """Names of the modules that a real process has imported after it has planned an epoch."""
    listed = subprocess.run([sys.executable, "-c", PLANNED], check=True, stdout=subprocess.PIPE, text=True)
    return set(listed.stdout.split())


@pytest.mark.process
def test_planning_an_epoch_does_without_numpy_ma(imported):
    """Planning an epoch, which the first batch waits for, does not import numpy.ma."""
    assert "streamer.order.plan" in imported
    assert "numpy.ma" not in imported
