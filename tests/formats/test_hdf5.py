"""HDF5 meets the contract of the formats; other libraries' files, and what must be said of those that are not read."""

from __future__ import annotations

import io
from collections.abc import Callable

import h5py
import numpy as np
import pytest

from streamer.errors import ManifestError
from streamer.formats.arrays.hdf5.format import HDF5
from streamer.formats.base import Block, Span
from tests.formats.cases import Case, facts_of, find, read_case
from tests.formats.contract import FormatContract

NAMES = ("fields_of_several", "rows_of_one", "packed", "grown")


class TestHDF5(FormatContract):
    @classmethod
    def cases(cls) -> list[Case]:
        return [read_case(HDF5(), f"hdf5/{name}") for name in NAMES]
