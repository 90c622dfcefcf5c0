"""Images compared with the libraries of their formats: TIFFs of every kind that tifffile writes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from streamer.decode.images import ImageDecoder
from tests.formats.library_environment import make, python_with_only

pytestmark = [pytest.mark.formats, pytest.mark.timeout(3000)]

TIFFFILE = ("tifffile==2026.3.3", "imagecodecs==2026.3.6")
FILES = 4000
# JPEGs are decoded by two releases of libjpeg.
JPEG_LEVELS = 2


def test_tiffs_are_those_of_tifffile_or_refused(tmp_path: Path) -> None:
    """TIFFs of all types, bands, tilings, byte orders and compressions have tifffile's values, or are refused."""
    make(python_with_only(*TIFFFILE), "tiffs.py", tmp_path / "tiffs", FILES)
    stored, counts = ImageDecoder(mode="stored"), Counter[str]()
    for number, known in json.loads((tmp_path / "tiffs" / "described.json").read_text()).items():
        content, expected = (
            (tmp_path / "tiffs" / f"{number}.tif").read_bytes(),
            np.load(tmp_path / "tiffs" / f"{number}.npy"),
        )
        if known["bits"] < 8:
            highest = 2 ** known["bits"] - 1
            expected = np.rint(expected / highest * 255).astype(np.uint8)
        refusal, found = "", expected
        try:
            found = stored(content)
        except ValueError as error:
            refusal = str(error)
        counts["refused" if refusal else "read"] += 1
        if refusal:
            assert "decode={'tif': your_function}" in refusal, known
            continue
        assert found.dtype == expected.dtype, known
        assert found.shape == (expected.shape if expected.shape[2] > 1 else expected.shape[:2]), known
        if "'jpeg'" in known["drawn"]:
            assert np.abs(found.astype(int) - expected.reshape(found.shape)).max() <= JPEG_LEVELS, known
        else:
            assert np.array_equal(found, expected.reshape(found.shape), equal_nan=found.dtype.kind in "fc"), known
    assert counts["read"] > FILES / 4, counts
    assert counts["refused"] < counts["read"] / 3, counts
