"""Columns of arrays: conditions and joins on HDF5 and zarr, through an engine, read the arrays that they name alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest

from streamer import StreamingDataset
from streamer.errors import AccessDeniedError, ConfigError, ManifestError
from streamer.formats import HDF5
from streamer.formats.base import Format
from streamer.loader.members import columns as narrow
from streamer.manifest.table import Manifest
from streamer.wire.messages import GetManifest
from tests.formats.cases import MemoryStore, built
from tests.formats.contract import engine_below

h5py = pytest.importorskip("h5py")
LABELS = np.arange(40) % 7


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Writes images, and a number for each, in two compressed datasets."""
    engine_below(tmp_path, monkeypatch)
    place = tmp_path / "data"
    place.mkdir()
    _file(place / "a.h5")
    return place


def _file(path: Path, seed: int = 0) -> Path:
    with h5py.File(path, "w") as file:
        images = np.random.default_rng(seed).integers(0, 255, (40, 32, 32), np.uint8)
        file.create_dataset("image", data=images, chunks=(4, 32, 32), compression="gzip")
        file.create_dataset("label", data=LABELS, chunks=(8,), compression="gzip")
    return path


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Collects the digests of manifests that columns are read with, and the bytes fetched for their samples."""
    noted: list[tuple[str, int]] = []
    real: Callable[..., Manifest] = narrow.narrow_manifest

    def note(*arguments: object) -> Manifest:
        manifest = real(*arguments)
        noted.append((manifest.digest, fetched(manifest)))
        return manifest

    monkeypatch.setattr("streamer.loader.members.columns.narrow_manifest", note)
    monkeypatch.setattr(narrow, "narrow_manifest", note)
    return noted


def fetched(manifest: Manifest) -> int:
    return int(manifest.column("chunks", "fetch_bytes").sum())


def test_a_condition_on_a_dataset(data: Path, found: list[tuple[str, int]]):
    """A condition on a dataset of numbers fetches it alone; one on images is refused before they are fetched."""
    with closing(StreamingDataset(data, cache_bytes="1GB")) as dataset:
        part = dataset.select(where="label == 3")
        assert part.samples == int((LABELS == 3).sum())
        assert 0 < found[0][1] < fetched(dataset._member.open().manifest) / 20
        with pytest.raises(ConfigError, match="'image': samples have arrays of 32 x 32 numbers"):
            _ = dataset.select(where="image > 3").samples
        assert len(found) == 1


def test_a_key_in_a_dataset(data: Path, found: list[tuple[str, int]]):
    """A join on a dataset of keys reads them on both sides without the images."""
    named = HDF5(datasets={"label": "label", "picture": "image"})
    with closing(StreamingDataset(data, cache_bytes="1GB")) as left, closing(_first(data, named)) as right:
        joined = left.join(right, on="label", columns=["picture"])
        assert joined.samples == 40
        assert [length < fetched(left._member.open().manifest) / 20 for _, length in found] == [True, True]


def _first(data: Path, chosen: Format) -> StreamingDataset:
    """Opens a dataset of one sample of each label."""
    return StreamingDataset(data, format=chosen, cache_bytes="1GB").select(indices=range(7))


def test_an_array_that_was_never_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: list[tuple[str, int]]):
    """A zarr array without chunks has its fill value in conditions, which read it with the other arrays."""
    engine_below(tmp_path, monkeypatch)
    store = tmp_path / "data" / "a.zarr"
    layout = {"zarr_format": 2, "compressor": None, "filters": None, "order": "C", "fill_value": 5}
    for name, dtype in (("image", "<f4"), ("label", "<i4")):
        (store / name).mkdir(parents=True)
        described = {**layout, "shape": [6], "chunks": [3], "dtype": dtype}
        (store / name / ".zarray").write_text(json.dumps(described))
    (store / ".zgroup").write_text('{"zarr_format": 2}')
    for number in range(2):
        (store / "image" / str(number)).write_bytes(np.arange(3, dtype="<f4").tobytes())
    with closing(StreamingDataset(store.parent, cache_bytes="1GB")) as dataset:
        assert dataset.select(where="label == 5").samples == 6
        assert found[0][0] == dataset._member.open().manifest.digest
        assert dataset.select(where="image == 2").samples == 2
        assert found[1][0] != dataset._member.open().manifest.digest


@pytest.mark.parametrize("error", [ManifestError("it takes too long"), AccessDeniedError("no listing")])
async def test_fields_that_cannot_be_had_alone(error: Exception, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """A condition whose fields cannot be had alone reads them with the others, and a warning says why."""
    objects = {"a.h5": _file(tmp_path / "a.h5").read_bytes()}
    whole = await built(HDF5(), MemoryStore(objects), tmp_path / "m")

    class Client:
        """Stands for the client of an engine that cannot index the fields alone: each request raises the error."""

        def manifest(self, request: GetManifest) -> Path:
            assert msgspec.json.decode(request.format_options) == {"datasets": {"label": "label"}}
            raise error

    request = GetManifest(0, ["s3://bucket/data/"], "hdf5")
    assert narrow.narrow_manifest(whole, ["label"], Client(), request) is whole
    assert str(error) in caplog.text


async def test_objects_that_have_changed(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """A narrow manifest is used only while its objects are those of the whole one; a warning says so."""
    content = _file(tmp_path / "a.h5").read_bytes()
    whole = await built(HDF5(), MemoryStore({"a.h5": content}), tmp_path / "m")
    other = _file(tmp_path / "b.h5", 1).read_bytes()
    for held, expected in ((content, True), (other, False)):
        part = await built(HDF5(datasets={"label": "label"}), MemoryStore({"a.h5": held}), tmp_path / "n")

        class Client:
            """Stands for the client of an engine: its manifest is the one that the test has built."""

            def manifest(self, request: GetManifest, path: Path = part.path) -> Path:
                return path

        found = narrow.narrow_manifest(whole, ["label"], Client(), GetManifest(0, ["s3://bucket/data/"], "hdf5"))
        assert (found is not whole) is expected
    assert "the objects have changed" in caplog.text
