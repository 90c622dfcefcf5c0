"""Windows over rows, compared with numpy's slices, in each format of rows; what is fetched, kept and refused."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamer import Order, StreamingDataLoader, StreamingDataset
from streamer.errors import ConfigError, DecodeError, ManifestError, RecodeError
from streamer.formats import HDF5, Npy, Parquet, RawArrays, Zarr
from streamer.formats.base import Block, Format, SampleName
from streamer.formats.windows import RowPiece, windows_of
from streamer.manifest.blocks import plan_local_bytes
from tests.formats.cases import Case, MemoryStore, block_bytes, built, contents_of, facts_of, find, recode
from tests.formats.contract import FormatContract
from tests.formats.summary import summary
from tests.zarrs import zarr_store

LENGTH, STRIDE = 16, 4
WINDOW = (LENGTH, STRIDE)
ROWS = {"a": 150, "b": 15, "c": 16, "d": 65}
Arrays = Mapping[str, np.ndarray]


def arrays(rows: int, seed: int) -> dict[str, np.ndarray]:
    """Makes the fields of some rows."""
    drawn = np.random.default_rng(seed)
    return {
        "action": drawn.standard_normal((rows, 7)).astype("<f4"),
        "image": drawn.integers(0, 256, (rows, 6, 5, 3)).astype("u1"),
        "reward": drawn.standard_normal(rows),
    }


FILES = {name: arrays(rows, seed) for seed, (name, rows) in enumerate(ROWS.items())}


def slices(files: Sequence[Arrays], names: Mapping[str, str], window: tuple[int, int] = WINDOW) -> list[dict[str, str]]:
    """Returns what numpy says: for each window the summary of each field."""
    length, stride = window
    return [
        {field: summary(array[name][first : first + length]) for field, name in names.items()}
        for array in files
        for first in range(0, len(next(iter(array.values()))) - length + 1, stride)
    ]


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def hdf5(fields: Arrays, chunks: Mapping[str, int], **options: object) -> bytes:
    file = io.BytesIO()
    with h5py.File(file, "w") as root:
        for name, array in fields.items():
            shape = (chunks[name], *array.shape[1:]) if name in chunks else None
            root.create_dataset(name, data=array, chunks=shape and tuple(map(min, shape, array.shape)), **options)
    return file.getvalue()


def parquet(fields: Arrays, rows: int, **options: object) -> bytes:
    """Returns a file that says the lengths of its lists as Hugging Face's datasets does."""
    columns = {
        name: pa.array(array)
        if array.ndim == 1
        else pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1)), array[0].size)
        for name, array in fields.items()
    }
    features = {
        name: {"_type": "Sequence", "feature": {"_type": "Value", "dtype": str(array.dtype)}, "length": array[0].size}
        for name, array in fields.items()
        if array.ndim > 1
    }
    table = pa.table(columns).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=rows, **options)
    return file.getvalue()


ONE, ALL = {"array": "action"}, {name: name for name in ("action", "image", "reward")}


NPY = {f"{name}.npy": npy(array["action"]) for name, array in FILES.items()}


class TestWindows(FormatContract):
    @classmethod
    def cases(cls) -> list[Case]:
        files = list(FILES.values())
        flat = [{name: array[name] for name in ("action", "reward")} for array in files]
        return [
            Case(
                "npy", Npy(window=WINDOW), {f"{n}.npy": npy(a["action"]) for n, a in FILES.items()}, slices(files, ONE)
            ),
            Case(
                "raw",
                RawArrays("<f4", (7,), window=WINDOW),
                {f"{n}.bin": a["action"].tobytes() for n, a in FILES.items()},
                slices(files, ONE),
            ),
            Case(
                "npy apart",
                Npy(window=(5, 9)),
                NPY,
                slices(files, ONE, (5, 9)),
            ),
            Case(
                "hdf5",
                HDF5(window=WINDOW),
                {
                    f"{n}.h5": hdf5(a, {"image": 10, "action": 25, "reward": 40}, compression="gzip")
                    for n, a in FILES.items()
                },
                slices(files, ALL),
                copied=frozenset(ALL),
            ),
            Case(
                "hdf5 of one array",
                HDF5(datasets={"image": "image"}, window=WINDOW),
                {f"{n}.h5": hdf5(a, {}) for n, a in FILES.items()},
                slices(files, {"image": "image"}),
            ),
            Case(
                "zarr",
                Zarr(window=WINDOW),
                {f"{n}.zarr/{key}": value for n, a in FILES.items() for key, value in zarr_store(a, 10).items()},
                slices(files, ALL),
                copied=frozenset(ALL),
            ),
            Case(
                "zarr of one array",
                Zarr(arrays={"image": "image"}, window=WINDOW),
                zarr_store({"image": FILES["a"]["image"]}, 7, compressed=False),
                slices(files[:1], {"image": "image"}),
            ),
            Case(
                "parquet",
                Parquet(window=WINDOW),
                {f"{n}.parquet": parquet(a, 20) for n, a in zip(FILES, flat, strict=True)},
                slices(files, {"action": "action", "reward": "reward"}),
                copied=frozenset(ALL),
            ),
        ]


def blocks_in(chosen: Format, objects: Mapping[str, bytes], chunk_bytes: int) -> list[Block]:
    return [item for _, items in find(chosen, objects, chunk_bytes).items for item in items if isinstance(item, Block)]


@pytest.mark.parametrize(
    "kind",
    [
        "npy",
        "hdf5",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("zarr", "parquet with pages", "parquet")),
    ],
)
def test_bytes_and_chunk_files(kind: str) -> None:
    """Chunks of windows fetch and keep at most 1.1 times the rows, and windows are numpy's slices."""
    rows = np.random.default_rng(0).integers(0, 1 << 30, (40_000, 64)).astype("<i4")
    chosen, objects = {
        "npy": lambda: (Npy(window=WINDOW), {"a.npy": npy(rows)}),
        "hdf5": lambda: (HDF5(window=WINDOW), {"a.h5": hdf5({"array": rows}, {"array": 50}, compression="gzip")}),
        "zarr": lambda: (Zarr(window=WINDOW), zarr_store({"array": rows}, 50)),
        "parquet with pages": lambda: (
            Parquet(window=WINDOW),
            {
                "a.parquet": parquet(
                    {"array": rows}, 40_000, write_page_index=True, data_page_size=1 << 13, use_dictionary=False
                )
            },
        ),
        "parquet": lambda: (Parquet(window=WINDOW), {"a.parquet": parquet({"array": rows}, 50, use_dictionary=False)}),
    }[kind]()
    chunk_bytes = rows.nbytes // 40
    found = find(chosen, objects, chunk_bytes)
    blocks = [item for _, items in found.items for item in items]
    assert len(blocks) > 20
    assert sum(block.fetch_bytes for block in blocks) < 1.1 * sum(map(len, objects.values()))
    local = sum(64 + plan_local_bytes([block], block.record_bytes) + 4 * block.samples for block in blocks)
    assert local < 1.1 * rows.nbytes
    opener = chosen.opener(facts_of(found))
    contents = contents_of(chosen, found, objects)
    assert len(contents) == (len(rows) - LENGTH) // STRIDE + 1
    for number, (content, name) in enumerate(contents):
        [field] = opener.open(memoryview(content), name)[1]
        got = np.frombuffer(field.content, "<i4").reshape(LENGTH, 64)
        assert (got == rows[STRIDE * number :][:LENGTH]).all()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=12),
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(1, 400),
)
def test_every_window_is_in_one_block(runs: list[int], length: int, stride: int, chunk_bytes: int) -> None:
    """Blocks have each window once and in order, over pieces of rows of any lengths."""
    rows, at, pieces = (np.arange(sum(runs)) % 256).astype("u1"), 0, []
    for count in runs:
        pieces.append(RowPiece(((at, at + count),), count))
        at += count
    got = []
    chosen = RawArrays("u1", window=(length, stride))
    found = find(chosen, {"x": rows.tobytes()})
    for block in windows_of(pieces, (length, stride), 1, chunk_bytes):
        content = b"".join(rows[a:b].tobytes() for a, b in block.ranges)
        made = recode(chosen, found, block, content)
        assert len(made) == block.samples
        assert plan_local_bytes([block], block.record_bytes) >= block.record_bytes
        got += made
    expected = [rows[first : first + length].tobytes() for first in range(0, len(rows) - length + 1, stride)]
    assert got == expected
    assert facts_of(found).fields[0].kind == f"u1[{length}]"


@pytest.mark.parametrize("window", [(0, 1), (4, 0), (4, -1), (4,), 4, (4, 1, 1), ("4", 1), (True, 1), (2.0, 1)])
def test_windows_that_are_none(window: object) -> None:
    """A window that is not two integers of at least 1 is a ConfigError."""
    with pytest.raises(ConfigError, match=r"Npy: window=.* is not \(rows of a sample, rows from one to the next\)"):
        Npy(window=window)  # type: ignore[arg-type]


async def test_a_window_that_is_longer_than_every_file(tmp_path: Path) -> None:
    """The error for a window longer than each file has the window and the rows of the longest file."""
    said = r"have no sample in them \(format 'npy' with window=[\[(]151, 1[\])]\): the longest has 150 rows"
    with pytest.raises(ManifestError, match=said):
        await built(Npy(window=(151, 1)), MemoryStore(NPY), tmp_path)


def test_rows_of_other_things_than_numbers() -> None:
    """Windows over a column of texts are refused by its name, and a null in a window is a DecodeError."""
    table = {"x": np.arange(40), "caption": np.array(["a"] * 40)}
    with pytest.raises(ManifestError, match=r"a field 'caption' of kind 'txt', and window= takes numbers"):
        find(Parquet(window=WINDOW), {"a.parquet": parquet(table, 40)})
    chosen = Parquet(columns=("x",), window=(2, 1))
    file = io.BytesIO()
    pq.write_table(pa.table({"x": pa.array([1, None, 3])}), file)
    found = find(chosen, {"a.parquet": file.getvalue()})
    contents = contents_of(chosen, found, {"a.parquet": file.getvalue()})
    with pytest.raises(DecodeError, match="row 1 of the window has a null"):
        chosen.opener(facts_of(found)).open(memoryview(contents[0][0]), SampleName())


def test_blocks_that_are_not_what_the_index_has_found() -> None:
    """Blocks of windows with other bytes, counts or hints than indexed are refused by the recoder."""
    content = npy(FILES["a"]["action"])
    chosen = Npy(window=WINDOW)
    found = find(chosen, {"a.npy": content})
    [block] = [item for _, items in found.items for item in items]
    assert isinstance(block, Block)
    recoder, whole = chosen.recoder(facts_of(found)), block_bytes(block, content)
    for wrong, samples, hint in ((whole[:-28], block.samples, block.hint), (whole, block.samples + 1, block.hint)):
        with pytest.raises(RecodeError, match="rows"):
            recoder.recode(memoryview(wrong), samples, hint)
    with pytest.raises(RecodeError, match="does not say where rows are"):
        recoder.recode(memoryview(whole), block.samples, b"\x91")


@pytest.fixture
def episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Writes files of actions and rewards, and names folders for caches."""
    monkeypatch.setenv("STREAMER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "run"))
    folder = tmp_path / "episodes"
    folder.mkdir()
    for name, array in FILES.items():
        (folder / f"{name}.h5").write_bytes(hdf5(array, {"image": 10}))
    return folder


EXPECTED = sorted(json.dumps(window, sort_keys=True) for window in slices(list(FILES.values()), ALL))


def seen_in(batch: Mapping[str, object]) -> list[str]:
    """Returns what is in a batch, as `EXPECTED` has it."""
    arrays = {name: np.asarray(batch[name].numpy()) for name in ALL}  # type: ignore[attr-defined]
    count = len(arrays["reward"])
    return [json.dumps({name: summary(arrays[name][i]) for name in sorted(ALL)}, sort_keys=True) for i in range(count)]


@pytest.mark.process
def test_four_ranks_then_two_then_one(episodes: Path) -> None:
    """Windows resumed on four, two and one rank come once each, with the numbers of the file."""
    seen: list[str] = []
    state: dict[str, object] | None = None
    for ranks, most in ((4, 2), (2, 3), (1, 1000)):
        states = []
        for rank in range(ranks):
            dataset = StreamingDataset(
                episodes,
                format=HDF5(window=WINDOW),
                cache_bytes="1GB",
                rank=rank,
                world_size=ranks,
                order=Order(last_batch="fill"),
            )
            with closing(dataset), closing(StreamingDataLoader(dataset, 8 // ranks, 0)) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                for batch in islice(loader, most):
                    seen += seen_in(batch)
                states.append(loader.state_dict())
        state = states[0]
    assert sorted(seen) == EXPECTED


@pytest.mark.process
def test_the_example_of_the_documentation(episodes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The example of windows in docs/formats.md runs, and prints the shape of a batch."""
    text = (Path(__file__).parents[2] / "docs" / "formats.md").read_text().partition("## Windows of rows")[2]
    example = text.partition("```python")[2].partition("```")[0]
    exec(example.replace("s3://bucket/episodes/", str(episodes)), {})
    assert capsys.readouterr().out.splitlines()[0] == "torch.Size([32, 16, 7])"
