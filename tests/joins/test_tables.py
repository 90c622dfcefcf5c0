"""The tables that joins and keys make beside manifests of a real engine: what uses them, and when they are removed."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamer import StreamingDataLoader, StreamingDataset
from streamer.cli.main import main
from streamer.client.engine_client import EngineClient
from streamer.engine.manifests.manifest_store import ManifestStore
from streamer.loader.members import keys as keys_module
from tests.joins import sides
from tests.read_only import refuse_writes

Closing = Callable[[Any], Any]


@pytest.fixture
def folder(engine: EngineClient) -> Path:
    """Returns the folder of the manifests."""
    return engine.roots()[0] / "manifests"


def tables(folder: Path) -> set[str]:
    """Returns the kinds of tables that are there."""
    return {path.suffix for path in folder.iterdir() if path.suffix in (".keys", ".listed-keys", ".join")}


def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes any further read of keys from data fail."""

    def refuse(*_: object) -> None:
        raise AssertionError("keys are read")

    monkeypatch.setattr(keys_module.KeyReader, "_read_values", refuse)


def test_a_key_is_found_in_the_table_of_a_join(tmp_path: Path, closing: Closing, monkeypatch: pytest.MonkeyPatch):
    """`index_of` finds a key in the table that a join has made, also within a selection; else the data are read.

    Keys may be numbers; a key that is not in the table is a KeyError.
    """
    sides.write_left(tmp_path / "left")
    left = closing(StreamingDataset(tmp_path / "left", shuffle=False))
    assert left.get("000017")["json"]["n"] == 17
    right = closing(StreamingDataset(sides.tars(tmp_path / "right", [5, 3, 8])))
    rows = closing(StreamingDataset(sides.array(tmp_path / "rows", range(9)), format="npy"))
    for other, on in ((left, "__key__"), (rows, ("json.n", "__key__"))):
        assert (
            closing(left.select(indices=[3]).join(other, on=on, columns={"__key__": "k"}, missing="drop"))[0]["json"][
                "n"
            ]
            == 3
        )
    unread(monkeypatch)
    assert left[left.index_of("000017")]["json"]["n"] == 17
    some = closing(left.select(indices=range(10, 20)))
    assert some.index_of("000017") == 7
    assert rows.index_of("7") == 7
    for dataset, key in ((some, "000005"), (left, "17"), (rows, "9"), (rows, "x"), (rows, "9" * 400)):
        with pytest.raises(KeyError, match="no sample has the key"):
            dataset.index_of(key)
    with pytest.raises(AssertionError, match="keys are read"):
        right.get("row3")


def test_an_index_of_keys_makes_the_table(
    tmp_path: Path, folder: Path, closing: Closing, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """`streamer index --columns __key__` makes the table of keys that joins, `index_of` and `streamer show` use."""
    sides.write_left(tmp_path / "left")
    sides.json_lines(tmp_path / "lines", range(40))
    assert main(["index", str(tmp_path / "left"), "--columns", "__key__,json.uid"]) == 0
    assert main(["index", str(tmp_path / "lines"), "--columns", "__key__,uid"]) == 0
    unread(monkeypatch)
    left, lines = closing(StreamingDataset(tmp_path / "left")), closing(StreamingDataset(tmp_path / "lines"))
    assert any(path.suffix == ".keys" for path in folder.glob(f"{left._member.open().manifest.digest}.*"))
    assert left[left.index_of("000017")]["json"]["n"] == 17
    assert lines.index_of("17") == 17
    joined = closing(left.join(lines, on=("json.uid", "uid"), missing="drop", columns={"n": "row"}))
    assert sorted(joined[number]["row"] for number in range(joined.samples)) == list(range(40))
    assert main(["show", str(tmp_path / "left"), "--key", "000017"]) == 0
    assert ": 000017" in capsys.readouterr().out


@pytest.mark.slow
def test_tables_leave_with_their_manifests(tmp_path: Path, folder: Path, closing: Closing):
    """Tables of joins are removed with their manifests, but not while a job has them open."""
    sides.write_left(tmp_path / "left")
    sides.tars(tmp_path / "right", range(sides.COUNT))
    store = ManifestStore(folder)
    before = set(folder.iterdir())

    def made() -> set[str]:
        return {path.name.partition(".")[2] for path in set(folder.iterdir()) - before if "." in path.name}

    def remove() -> None:
        gc.collect()
        # What a later engine does, for which all is old and nothing fits.
        store.remove_idle([], 0, time.time() + 1e6)

    left = StreamingDataset(tmp_path / "left", transform=lambda sample: {"n": sample["json"]["n"]})
    right = StreamingDataset(tmp_path / "right")
    joined = left.join(right, on=("json.uid", "meta.json.id.uid"), columns=["vector.npy"])
    with StreamingDataLoader(joined, 24, num_workers=1) as loader:
        batches = iter(loader)
        next(batches)
        assert tables(folder) == {".keys", ".listed-keys", ".join"}
        names = made()
        remove()
        assert made() == names
        assert sum(len(batch["n"]) for batch in batches) == sides.COUNT - 24
        assert sum(len(batch["n"]) for batch in loader) == sides.COUNT
    for dataset in (joined, left, right):
        dataset.close()
    del joined, left, right, loader, batches, dataset
    remove()
    assert not made() & names


def test_tables_of_a_fallback_folder_leave_after_their_manifests(
    tmp_path: Path, engine: EngineClient, folder: Path, closing: Closing, monkeypatch: pytest.MonkeyPatch
):
    """Tables in the fallback folder are removed by the cache's next dataset once their manifest is gone.

    They are there if the folder of the manifests is read-only.
    """
    refuse_writes(monkeypatch, folder)
    sides.write_left(tmp_path / "left")
    sides.tars(tmp_path / "right", range(sides.COUNT))
    left, right = (StreamingDataset(tmp_path / name) for name in ("left", "right"))
    joined = left.join(right, on=("json.uid", "meta.json.id.uid"), columns=["vector.npy"])
    assert joined.samples == sides.COUNT
    assert tables(engine.fallback_dir) == {".keys", ".listed-keys", ".join"}
    gone = right._member.open().manifest.path
    for dataset in (joined, right, left):
        dataset.close()
    _ = closing(StreamingDataset(tmp_path / "left")).samples
    assert tables(engine.fallback_dir) == {".keys", ".listed-keys", ".join"}
    gone.rename(tmp_path / "gone")
    _ = closing(StreamingDataset(tmp_path / "left")).samples
    assert tables(engine.fallback_dir) == {".listed-keys"}


@pytest.mark.parametrize("damaged", [("high.u64", ".keys"), ("low.u64", ".listed-keys"), ("right.i64", ".join")])
def test_damaged_tables_are_made_again(damaged: tuple[str, str], tmp_path: Path, folder: Path, closing: Closing):
    """A table that is cut off, or lacks a file, is not used, and the next join makes it again."""
    name, ending = damaged
    sides.write_left(tmp_path / "left")
    sides.tars(tmp_path / "right", range(sides.COUNT))

    def join() -> int:
        left, right = (closing(StreamingDataset(tmp_path / side)) for side in ("left", "right"))
        return int(closing(left.join(right, on=("json.uid", "meta.json.id.uid"), columns=["vector.npy"])).samples)

    before = set(folder.iterdir())
    assert join() == sides.COUNT
    made = {path.suffix: path for path in set(folder.iterdir()) - before}
    for number in range(2):
        file = made[ending] / name
        if number:
            file.unlink()
        else:
            file.write_bytes(file.read_bytes()[:-8])
        # It is needed for the join only.
        if ending != ".join":
            (made[".join"] / "head.json").unlink()
        assert join() == sides.COUNT
        assert file.is_file()
