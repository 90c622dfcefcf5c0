"""Larger files that h5py (an older release, too) and zarr have just written in environments of their own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numcodecs.blosc
import pytest

from streamer.formats.base import Format
from streamer.tables.hdf5.format import HDF5
from streamer.tables.zarr.format import Zarr
from tests.formats.cases import MemoryStore, built, read_case
from tests.formats.contract import samples_of
from tests.formats.library_environment import make, python_with_only
from tests.formats.test_hdf5 import NAMES as FILES
from tests.formats.test_zarr import NAMES as STORES

pytestmark = [pytest.mark.formats, pytest.mark.timeout(3000)]

ROWS = 1000


@pytest.fixture(scope="module", autouse=True)
def _semaphore() -> None:
    """Makes blosc's semaphore before the tests, so that none seems to leave it, as in test_zarr.py."""
    numcodecs.blosc.compress(b"a", b"lz4", 1, 1)


@pytest.mark.parametrize(
    ("packages", "script", "chosen", "names"),
    [
        (("h5py==3.16.0",), "hdf5.py", HDF5(), FILES),
        # With HDF5 1.12.
        (("h5py==3.8.0", "numpy<2"), "hdf5.py", HDF5(), FILES),
        (("zarr==3.1.6",), "zarr_stores.py", Zarr(), STORES),
    ],
    ids=["h5py-new", "h5py-old", "zarr"],
)
def test_what_the_libraries_write(
    packages: tuple[str, ...], script: str, chosen: Format, names: tuple[str, ...], tmp_path: Path
):
    """HDF5 files of two releases of h5py and stores of zarr deliver each row as these libraries read it."""
    make(python_with_only(*packages), script, tmp_path / "data", ROWS)
    for name in names:
        case = read_case(chosen, str(tmp_path / "data" / name))
        assert len(case.samples) >= ROWS
        found = zip(samples_of(case), case.samples, strict=True)
        assert [number for number, (ours, libraries) in enumerate(found) if ours != libraries] == []
        manifest = asyncio.run(built(chosen, MemoryStore(case.objects, seed=1), tmp_path / name, 64 << 10))
        assert manifest.samples == len(case.samples)
