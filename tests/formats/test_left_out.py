"""What an index cannot use is named in one error, or left out and noted; by builds from a store in memory."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamer.errors import ManifestError
from streamer.formats import HDF5, LeRobot, Npy, Video
from streamer.formats.base import Format
from streamer.manifest.table import Manifest
from tests.formats.cases import MemoryStore, built
from tests.lerobot_sets import CAMERAS, LENGTHS, lerobot_set
from tests.videos import video


async def skipped(
    chosen: Format, objects: Mapping[str, bytes], root: Path, notes: list[str], **options: object
) -> Manifest:
    """Builds the manifest without what cannot be used; `notes` gets the lines about it."""
    return await built(chosen, MemoryStore(objects), root, on_damage=notes.append, **options)


BAD = {
    '{"path": "gone.mp4", "start": 0, "end": 1}': "row 1 names 'gone.mp4', which is no video",
    '{"path": "a.mp4", "start": 3, "end": 2}': "row 2 goes from 3.0 to 2.0 s",
    '{"path": "a.mp4", "start": 1}': "row 3 goes from 1.0 to nan s",
    '{"path": "a.mp4", "start": -1, "end": 1}': "row 4 goes from -1.0 to 1.0 s",
    '{"path": null, "start": 0, "end": 1}': "row 5 names '', which is no video",
}
GOOD = '{"path": "a.mp4", "start": 0, "end": 1}'


async def test_rows_that_are_no_segments(tmp_path: Path):
    """Rows of segments that name no video or no times are refused all at once, or left out with a note each.

    Rows behind the end of a video are found when it is read.
    """
    content = video("libx264", 60, options={"preset": "ultrafast"})
    behind = '{"path": "b.mp4", "start": 0, "end": 99}\n{"path": "b.mp4", "start": 50, "end": 51}'
    objects = {"a.mp4": content, "b.mp4": content, "rows.jsonl": "\n".join([GOOD, *BAD, GOOD]).encode()}
    with pytest.raises(ManifestError, match="5 rows or parts of the dataset cannot be used") as caught:
        await built(Video(4, segments="rows.jsonl"), MemoryStore(objects), tmp_path)
    assert all(said in str(caught.value) for said in BAD.values())
    assert "Index(damaged='skip')" in str(caught.value)
    more = objects | {"rows.jsonl": f"{GOOD}\n{behind}".encode()}
    with pytest.raises(ManifestError, match=r"2 rows or parts of objects cannot be used: .*row 1 .*row 2 .*ends at"):
        await built(Video(4, segments="rows.jsonl"), MemoryStore(more), tmp_path)
    notes = list[str]()
    rows = "\n".join([GOOD, *BAD, GOOD, behind]).encode()
    manifest = await skipped(Video(4, segments="rows.jsonl"), {**objects, "rows.jsonl": rows}, tmp_path, notes)
    assert manifest.samples == 2
    assert notes[0] == "5 rows or parts of the dataset cannot be used and are left out"
    assert notes[6] == "2 rows or parts of objects cannot be used and are left out"


async def test_the_first_ten_are_named(tmp_path: Path):
    """The error and the notes name ten of the rows that cannot be used, and count the others."""
    content = video("libx264", 60, options={"preset": "ultrafast"})
    rows = [GOOD, *(json.dumps({"path": f"{n}.mp4", "start": 0, "end": 1}) for n in range(25))]
    objects = {"a.mp4": content, "rows.jsonl": "\n".join(rows).encode()}
    with pytest.raises(ManifestError, match=r"25 rows .*names '9.mp4'[^']*; 15 more; correct them"):
        await built(Video(2, segments="rows.jsonl"), MemoryStore(objects), tmp_path)
    notes = list[str]()
    await skipped(Video(2, segments="rows.jsonl"), objects, tmp_path, notes)
    assert (len(notes), notes[-1]) == (12, "left out: 15 more")


async def test_times_with_colons(tmp_path: Path):
    """Times of segments may have minutes and hours before colons; other texts are no times."""
    content = video("libx264", 90, options={"preset": "ultrafast"})
    times = [("00:00:01.5", "0:02"), ("00:01", "00:00:03"), ("1", "noon")]
    rows = [json.dumps({"path": "a.mp4", "start": start, "end": end}) for start, end in times]
    notes = list[str]()
    objects = {"a.mp4": content, "rows.jsonl": "\n".join(rows).encode()}
    manifest = await skipped(Video(2, segments="rows.jsonl"), objects, tmp_path, notes)
    assert manifest.samples == 2
    assert notes[1].endswith("row 2 goes from 1.0 to nan s; segments have 0 <= start < end")


def hdf5(**columns: np.ndarray) -> bytes:
    sink = io.BytesIO()
    with h5py.File(sink, "w") as file:
        file.update(columns)
    return sink.getvalue()


ROWS = np.arange(12.0).reshape(6, 2)


@pytest.mark.parametrize("bad", [hdf5(y=ROWS), hdf5(x=ROWS.astype("i4")), b"", b"no HDF5", hdf5(x=ROWS)[:300]])
@pytest.mark.parametrize("name", ["0.h5", "5.h5"])
async def test_files_of_other_columns_and_damaged_ones(bad: bytes, name: str, tmp_path: Path):
    """A damaged HDF5 file, or one of other columns, is left out wherever it is, in front, too."""
    good = {f"{number}.h5": hdf5(x=ROWS) for number in (1, 2, 7)}
    with pytest.raises(ManifestError, match=r"h5"):
        await built(HDF5(datasets={"x": "x"}), MemoryStore({**good, name: bad}), tmp_path)
    notes = list[str]()
    if name == "0.h5" and bad == hdf5(x=ROWS.astype("i4")):
        # The first file says of which type all are.
        assert (await skipped(HDF5({"x": "x"}), {**good, name: bad}, tmp_path, notes)).samples == 6
        return
    manifest = await skipped(HDF5(datasets={"x": "x"}), {**good, name: bad}, tmp_path, notes)
    assert manifest.samples == 18
    assert notes[0] == "1 of 4 objects cannot be read and are left out, with all their samples"
    assert name in notes[1]


async def test_npy_of_other_shapes(tmp_path: Path):
    """Damaged npy files, and those of another shape, are left out and counted."""

    def npy(array: np.ndarray) -> bytes:
        np.save(sink := io.BytesIO(), array)
        return sink.getvalue()

    objects = {"0.npy": b"", "1.npy": npy(ROWS), "2.npy": npy(ROWS[:, :1]), "3.npy": npy(ROWS)[:40], "4.npy": npy(ROWS)}
    notes = list[str]()
    assert (await skipped(Npy(), objects, tmp_path, notes)).samples == 12
    assert notes[0].startswith("3 of 5 objects")


async def test_episodes(tmp_path: Path):
    """Episodes of LeRobot whose videos are gone, or have no frames at their times, are refused or left out."""
    objects = dict(lerobot_set())
    episodes = "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(io.BytesIO(objects[episodes]))
    name = f"videos/{CAMERAS[0]}/from_timestamp"
    values = table[name].to_pylist()
    table = table.set_column(table.column_names.index(name), name, pa.array([values[0], values[1] + 0.03, *values[2:]]))
    pq.write_table(table, sink := io.BytesIO())
    objects[episodes] = sink.getvalue()
    with pytest.raises(ManifestError, match=r"1 rows or parts of objects .* episode 1 has row 0"):
        await built(LeRobot(), MemoryStore(objects), tmp_path)
    notes = list[str]()
    assert (await skipped(LeRobot(), objects, tmp_path, notes)).samples == sum(LENGTHS) - LENGTHS[1]
    lost = next(name for name in objects if CAMERAS[0] in name and name.endswith("file-001.mp4"))
    without = {name: content for name, content in objects.items() if name != lost}
    with pytest.raises(ManifestError, match=r"2 rows or parts of the dataset .*episode 2 .*episode 3 .*does not exist"):
        await built(LeRobot(), MemoryStore(without), tmp_path)
    assert (await skipped(LeRobot(), without, tmp_path, notes)).samples == LENGTHS[0]
