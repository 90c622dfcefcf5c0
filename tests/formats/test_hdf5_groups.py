"""Groups of HDF5 in the older layout: all their names are read, however many or long, and damaged ones are refused."""

from __future__ import annotations

import ctypes
import io
from pathlib import Path

import h5py
import numpy as np
import pytest

from streamer.errors import ManifestError
from streamer.tables.hdf5 import objects
from streamer.tables.hdf5.format import HDF5
from tests.formats.cases import Case, find
from tests.formats.contract import samples_of
from tests.formats.summary import summary

ROWS = 2


def write_episodes(names: list[str]) -> bytes:
    """Returns the bytes of a file with a group "data" in the older layout, which has an episode of each name."""
    sink = io.BytesIO()
    with h5py.File(sink, "w", libver="earliest") as file:
        fill(file, names)
    return sink.getvalue()


def fill(file: h5py.File, names: list[str]) -> None:
    for number, name in enumerate(names):
        file[f"data/{name}/actions"] = np.full((ROWS, 1), number, "<i4")


def read_actions(content: bytes, path: str = "data/*/actions") -> list[object]:
    return samples_of(Case("episodes", HDF5(datasets={"action": path}), {"a.h5": content}, []))


def rows_of(episodes: int) -> list[object]:
    """Returns the samples of a file of so many episodes, whose names are in their order."""
    return [{"action": summary(np.array([number], "<i4"))} for number in range(episodes) for _ in range(ROWS)]


@pytest.mark.parametrize("path", ["data/*/actions", "data/demo_*/actions"])
def test_more_than_a_megabyte_of_names(path: str) -> None:
    """All 1,100 groups of HDF5 whose names have 1,000 letters are episodes."""
    content = write_episodes([f"demo_{number:04}_{'x' * 990}" for number in range(1100)])
    assert read_actions(content, path) == rows_of(1100)


def test_tables_of_more_symbols_than_usual(tmp_path: Path) -> None:
    """A group of HDF5 whose writer chose tables of up to 200 symbols (H5Pset_sym_k) is read."""
    made = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    # h5py has no function for it.
    set_sym_k = ctypes.CDLL(h5py.h5p.__file__).H5Pset_sym_k
    set_sym_k.argtypes = [ctypes.c_int64, ctypes.c_uint, ctypes.c_uint]
    assert set_sym_k(made.id, 16, 100) >= 0
    opened = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    opened.set_libver_bounds(h5py.h5f.LIBVER_EARLIEST, h5py.h5f.LIBVER_LATEST)
    path = tmp_path / "a.h5"
    with h5py.File(h5py.h5f.create(bytes(path), h5py.h5f.ACC_TRUNC, made, opened)) as file:
        fill(file, [f"demo_{number}" for number in range(150)])
    assert read_actions(path.read_bytes()) == rows_of(150)


FEW = write_episodes(["first", "second"])
# The beginning of the table of symbols of the group "data": its head, and where the name "first" is.
FIRST = FEW.index(b"SNOD\1\0\2\0") + 8
HEAPS = [place for place in range(len(FEW)) if FEW.startswith(b"HEAP\0", place)]


def changed(place: int, number: int) -> bytes:
    """Returns the file of two episodes with another number of 8 bytes at a place."""
    return FEW[:place] + number.to_bytes(8, "little") + FEW[place + 8 :]


@pytest.mark.parametrize("number", [1 << 40, 1 << 10, (1 << 64) - 1])
def test_a_name_outside_of_the_names(number: int) -> None:
    """An HDF5 file with a link whose name is outside of its group's names is damaged, and named with the place."""
    assert read_actions(FEW) == rows_of(2)
    with pytest.raises(ManifestError, match=rf"a\.h5 is damaged: a name at byte {number} .*\(at byte {FIRST} of "):
        find(HDF5(datasets={"action": "data/*/actions"}), {"a.h5": changed(FIRST, number)})


def test_a_name_that_is_none_or_comes_twice() -> None:
    """An HDF5 file with a link that has no name, or the name of another link, is damaged."""
    chosen = HDF5(datasets={"action": "data/*/actions"})
    with pytest.raises(ManifestError, match=r"a\.h5 is damaged: a link without a name"):
        find(chosen, {"a.h5": changed(FIRST, 0)})
    second = int.from_bytes(FEW[FIRST + 40 : FIRST + 48], "little")
    with pytest.raises(ManifestError, match=r"a\.h5 is damaged: a second link 'second' in a group"):
        find(chosen, {"a.h5": changed(FIRST, second)})


@pytest.mark.parametrize("length", [1 << 20, 1 << 40, (1 << 64) - 1])
def test_names_that_are_longer_than_the_file(length: int) -> None:
    """An HDF5 file whose group says that its names have more bytes than the file is damaged."""
    for heap in HEAPS:
        with pytest.raises(ManifestError, match=rf"a\.h5 is damaged: {length} bytes of names .*more than the file has"):
            find(HDF5(datasets={"action": "data/*/actions"}), {"a.h5": changed(heap + 8, length)})


def test_names_of_more_than_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of HDF5 whose names are longer than the maximum is refused with both lengths, not as damaged."""
    monkeypatch.setattr(objects, "_MAX_HEAP_BYTES", 16)
    with pytest.raises(ManifestError, match=r"a group whose names have \d+ bytes, 16 at most are read") as caught:
        find(HDF5(datasets={"action": "data/*/actions"}), {"a.h5": FEW})
    assert "damaged" not in caught.value.message
