"""Tests of indices as in a list, and of conditions of a selection that apply one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from streamer.errors import ConfigError
from streamer.loader.members.selections import choose, pick
from streamer.manifest.selection import Where

ORDINALS = np.array([3, 5, 8, 13], np.int64)


@pytest.mark.parametrize(
    ("indices", "picked"),
    [
        ([0, 2], [3, 8]),
        ([-1, 0, 0], [13, 3, 3]),
        (slice(1, None, 2), [5, 13]),
        (np.array([True, False, False, True]), [3, 13]),
        (range(2), [3, 5]),
        ([], []),
    ],
)
def test_indices_name_what_they_name_in_a_list(indices, picked):
    """Indices pick what they pick in a list: negative ones from the end, slices and ranges, and bools as a mask."""
    assert pick(ORDINALS, indices).tolist() == picked


@pytest.mark.parametrize("indices", [[4], [-5], np.array([True, False])])
def test_indices_that_are_none_are_refused(indices):
    """Indices outside, or a mask of another length, are refused with the number of samples."""
    with pytest.raises(ConfigError, match="4 samples"):
        pick(ORDINALS, indices)


def test_nothing_chosen_is_everything(make_dataset, folder):
    """Without a condition there is no selection at all."""
    manifest = make_dataset(folder)._member.open().manifest
    assert choose(manifest, ()) is None


def test_each_choice_counts_in_the_one_before(make_dataset, folder):
    """Indices of a choice count what the choice before left: every second of the first ten of class 1."""
    manifest = make_dataset(folder)._member.open().manifest
    chosen = choose(
        manifest, [(None, Where(labels=[1])), (slice(0, 10), Where()), (np.arange(0, 10, 2), Where(sizes=(0, None)))]
    )
    of_class = np.flatnonzero(manifest.labels == 1)
    assert chosen.ordinals.tolist() == of_class[:10:2].tolist()
