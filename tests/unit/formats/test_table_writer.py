"""Columns of tables as numbers of numpy: what a null gives."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from streamer.formats.table.writer import numbers_of


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<i8", "|b1", "<u1"])
def test_a_null_is_0_in_each_type(dtype: str, offset: int) -> None:
    """A null is 0 in numbers of every type, also in float16, which Parquet has as bytes that may be anything there."""
    numbers = np.array([1, 1, 0, 1], dtype)
    missing = np.array([False, True, False, False])
    if dtype == "<f2":
        content = pa.py_buffer(np.array([1, 7, 0, 1], dtype).tobytes())
        validity = pa.array(~missing).buffers()[1]
        values = pa.Array.from_buffers(pa.binary(2), 4, [validity, content])
    else:
        values = pa.array(numbers, mask=missing)
    found = numbers_of(values.slice(offset), dtype)
    assert found.dtype == np.dtype(dtype)
    assert found.tolist() == np.where(missing, 0, numbers)[offset:].astype(dtype).tolist()
