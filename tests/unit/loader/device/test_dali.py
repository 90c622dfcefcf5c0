"""Tests of what `DaliSource` makes of batches; tests/formats/test_dali.py has DALI itself."""

from __future__ import annotations

import numpy as np
import pytest

from streamer.errors import ConfigError
from streamer.loader.device.dali import DaliSource


def test_numbers_are_arrays_of_one_number():
    """Fields come in the order of their names, and a number of each sample as an array of one number."""
    images = np.zeros((2, 4, 4), np.uint8)
    loader = [{"label": np.array([3, 5]), "image": images}]
    ((image, label),) = DaliSource(loader, ("image", "label"))
    assert image is images
    assert label.tolist() == [[3], [5]]


def test_batches_without_fields_are_refused():
    """A batch that is no dict is an error that names its type."""
    with pytest.raises(ConfigError, match="this one is a list"):
        list(DaliSource([[1, 2]], ("image",)))
