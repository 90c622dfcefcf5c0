"""What arrays deliver (the table of docs/formats.md): as stored, converted or refused, in npy, HDF5 and zarr alike."""

from __future__ import annotations

from collections.abc import Callable

import h5py
import numpy as np
import pytest

from streamer.errors import ManifestError
from streamer.formats import HDF5, Npy, Zarr
from tests.formats.cases import samples_in
from tests.formats.test_hdf5 import written
from tests.formats.test_rows import saved
from tests.formats.test_zarr import array, array_2

DTYPES = ["?", *(f"{order}{kind}{size}" for order in "<>" for kind in "iu" for size in (1, 2, 4, 8))]
DTYPES += [f"{order}{name}" for order in "<>" for name in ("f2", "f4", "f8", "c8", "c16")]
ENUM = h5py.enum_dtype({"cat": 3, "dog": 5}, basetype="i2")


def of_hdf5(rows: np.ndarray, **options: object) -> list[object]:
    return rows_in(HDF5(), {"a.h5": written(lambda file: file.create_dataset("x", data=rows, **options))})


def of_npy(rows: np.ndarray) -> list[object]:
    return rows_in(Npy(), {"a.npy": saved(rows)})


def of_zarr(rows: np.ndarray, order: str = "C") -> list[object]:
    lengths = {"shape": rows.shape, "chunks": rows.shape, "dtype": rows.dtype.str, "order": order}
    name = ".".join("0" * rows.ndim)
    return rows_in(Zarr(), {".zarray": array_2(**lengths), name: rows.tobytes(order)})


def rows_in(chosen: object, objects: dict[str, bytes]) -> list[object]:
    return [
        next(value for name, value in sample.items() if name != "__key__") for sample in samples_in(chosen, objects)
    ]


@pytest.mark.parametrize("read", [of_npy, of_hdf5, of_zarr])
@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_are_those_that_are_stored(read: Callable[[np.ndarray], list[object]], dtype: str):
    """Arrays of every width and byte order deliver the stored numbers, as rows and as single numbers."""
    rows = np.arange(-3, 9).reshape(4, 3).astype(dtype)
    assert np.array_equal(np.array(read(rows)), rows)
    assert np.array_equal(np.array(read(np.ascontiguousarray(rows[:, 0]))), rows[:, 0])


def test_enumerations_are_their_integers():
    """Enumerations of HDF5 are delivered as their integers, as h5py reads them."""
    assert of_hdf5(np.array([3, 5, 3], "i2"), dtype=ENUM) == [3, 5, 3]


def test_fortran_order():
    """Zarr arrays in Fortran order keep their axes; npy files in it are refused, because rows would be scattered."""
    rows = np.asfortranarray(np.arange(24, dtype="<i2").reshape(4, 3, 2))
    assert np.array_equal(of_zarr(rows, "F"), rows)
    with pytest.raises(ManifestError, match="Fortran order"):
        of_npy(rows)


@pytest.mark.parametrize("options", [{"chunks": (3, 2)}, {"chunks": (3, 2), "compression": "gzip", "shuffle": True}])
def test_chunks_at_edges(options: dict[str, object]):
    """Chunks at the edges of an HDF5 array deliver no more than the array."""
    rows = np.arange(35, dtype="<u2").reshape(7, 5)
    assert np.array_equal(of_hdf5(rows, **options), rows)


def test_scalars_and_arrays_without_rows():
    """Scalars are no fields, and refused where they are named; an array of no rows has no samples."""
    group = b'{"zarr_format": 3, "node_type": "group"}'
    grid = {"name": "regular", "configuration": {"chunk_shape": []}}
    store = {"zarr.json": group, "s/zarr.json": array(shape=[], chunk_grid=grid), "s/c": b"1"}
    store |= {"x/zarr.json": array(shape=[2, 2]), "x/c/0/0": b"abcd"}
    content = {"a.h5": written(lambda file: file.update({"s": 3.0, "x": np.arange(2)}))}
    assert rows_in(HDF5(), content) == [0, 1]
    assert np.array_equal(rows_in(Zarr(), store), [[97, 98], [99, 100]])
    for chosen, objects in ((HDF5(datasets={"s": "s"}), content), (Zarr(arrays={"s": "s"}), store)):
        with pytest.raises(ManifestError, match=r"its shape \(\) has no rows"):
            rows_in(chosen, objects)
    with pytest.raises(ManifestError, match="has no rows"):
        of_npy(np.float32(3))
    assert of_npy(np.zeros((0, 2))) == of_hdf5(np.zeros((0, 2))) == []


@pytest.mark.parametrize(
    ("read", "rows"),
    [
        (of_npy, np.zeros(2, "M8[s]")),
        (of_npy, np.zeros(2, "S3")),
        (of_npy, np.zeros(2, [("a", "i4"), ("b", "f4")])),
        (of_npy, np.zeros((2, 0))),
        (of_hdf5, np.zeros(2, "S3")),
        (of_hdf5, np.zeros(2, [("a", "i4"), ("b", "f4"), ("c", "f4")])),
        (of_hdf5, np.zeros(2, h5py.opaque_dtype("M8[s]"))),
        (of_hdf5, np.zeros((2, 0))),
        (of_hdf5, np.zeros(2, np.longdouble)),
        (of_zarr, np.zeros(2, "M8[s]")),
        (of_zarr, np.zeros(2, "S3")),
        (of_zarr, np.zeros((2, 0))),
    ],
)
def test_what_holds_no_numbers_is_refused(read: Callable[[np.ndarray], list[object]], rows: np.ndarray):
    """Arrays of dates, texts, structs or empty rows are refused with the object's name."""
    with pytest.raises(ManifestError, match=r"a\.npy|a\.h5|\.zarray"):
        read(rows)
