"""Datasets of folders, tars and records with annotations, read through an engine in a process of its own."""

from __future__ import annotations

import json
import multiprocessing.resource_tracker
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from streamer import Annotations, MixedDataset, StreamingDataLoader, StreamingDataset
from streamer.annotations.table import HEAD_NAME, ROWS_NAME
from streamer.client.engine_client import EngineClient
from streamer.client.settings import ClientSettings
from streamer.errors import ConfigError, DecodeError, ManifestError
from tests.tars import tar_of

COUNT = 24
Open = Callable[..., StreamingDataset]


@pytest.fixture(scope="module", autouse=True)
def _engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Starts one engine for all tests, kept alive by a client of its own."""
    folder = tmp_path_factory.mktemp("engine")
    multiprocessing.resource_tracker.ensure_running()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STREAMER_RUNTIME_DIR", str(folder / "run"))
        patch.setenv("STREAMER_CACHE_DIR", str(folder / "cache"))
        with EngineClient(ClientSettings.from_environment()) as client:
            client.roots()
            yield


@pytest.fixture
def opened() -> Iterator[Open]:
    """Opens datasets, and closes them after the test."""
    made: list[StreamingDataset] = []

    def take(*arguments: Any, **options: Any) -> StreamingDataset:
        made.append(StreamingDataset(*arguments, **options))
        return made[-1]

    yield take
    while made:
        made.pop().close()


def name(number: int) -> str:
    return f"{number:04}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Makes files of which each has its number."""
    for number in range(COUNT):
        path = tmp_path / "data" / "deep" / f"{name(number)}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, np.array([number]))
    return tmp_path / "data"


@pytest.fixture
def tars(folder: Path, tmp_path: Path) -> Path:
    """Makes two tars of the files of `folder`."""
    out = tmp_path / "tars"
    out.mkdir()
    files = sorted((folder / "deep").iterdir())
    for number, some in enumerate((files[:10], files[10:])):
        (out / f"{number}.tar").write_bytes(tar_of((file.name, file.read_bytes()) for file in some))
    return out


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Makes JSON lines of the same samples, whose keys are only numbers."""
    path = tmp_path / "records.jsonl"
    path.write_text("".join(json.dumps({"image": f"{name(n)}.npy", "npy_number": n}) + "\n" for n in range(COUNT)))
    return path


def labels_in(folder: Path, numbers: range = range(COUNT), **more: str) -> Path:
    """Writes a table in which the label is three times the number."""
    path = folder / "labels.csv"
    rows = "".join(f"{name(n)}.npy,{3 * n}\n" for n in numbers)
    path.write_text(f"file_name,tag\n{rows}{''.join(f'{key},{value}' + chr(10) for key, value in more.items())}")
    return path


def coco_in(folder: Path) -> Path:
    """Writes COCO's JSON in which number n has n % 3 boxes."""
    images = [{"id": n, "file_name": f"{name(n)}.npy", "height": 9, "width": 9} for n in range(COUNT)]
    objects = [
        {"image_id": n, "category_id": 5 + k, "bbox": [n, k, 1, 2], "area": 2, "iscrowd": 0}
        for n in range(COUNT)
        for k in range(n % 3)
    ]
    path = folder / "instances.json"
    categories = [{"id": 5, "name": "a"}, {"id": 6, "name": "b"}]
    path.write_text(json.dumps({"images": images, "annotations": objects, "categories": categories}))
    return path


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("data", ["folder", "tars"])
def test_every_sample_has_its_objects(
    request: pytest.FixtureRequest, opened: Open, tmp_path: Path, data: str, workers: int
) -> None:
    """Each sample of files or tars has its COCO objects, with workers and without, in the order that it has without."""
    url = request.getfixturevalue(data)
    dataset = opened(url, annotations=coco_in(tmp_path))
    plain = opened(url)
    found = []
    with StreamingDataLoader(dataset, batch_size=5, num_workers=workers, collate_fn=list) as loader:
        for sample in (sample for batch in loader for sample in batch):
            number = int(sample["npy"][0])
            found.append(number)
            assert sample["image_id"] == number
            assert sample["boxes"].tolist() == [[number, k, number + 1, k + 2] for k in range(number % 3)]
            assert sample["labels"].tolist() == list(range(number % 3))
    assert sorted(set(found)) == list(range(COUNT))
    assert found[:COUNT] == [int(sample["npy"][0]) for sample in plain][:COUNT]
    assert dataset.annotation_classes == ["a", "b"]
    assert dataset[3]["image_id"] == int(dataset[3]["npy"][0])


def test_records_are_joined_on_a_field(opened: Open, records: Path, tmp_path: Path) -> None:
    """Samples whose keys are only numbers are joined by `sample_field`; a field that they lack is an error."""
    dataset = opened(records, annotations=Annotations(str(labels_in(tmp_path)), sample_field="image"))
    assert sorted((s["npy_number"], s["tag"]) for s in dataset) == [(n, 3 * n) for n in range(COUNT)]
    wrong = opened(records, annotations=Annotations(str(tmp_path / "labels.csv"), sample_field="picture"))
    with pytest.raises(DecodeError, match=r"no field 'picture'.*image, npy_number"):
        wrong[0]


def test_a_missing_row_is_an_error_empty_or_drops_the_sample(opened: Open, folder: Path, tmp_path: Path) -> None:
    """A file without a row is an error, gets None, or is dropped, as `missing=` says; further rows do no harm."""
    table = str(labels_in(tmp_path, range(4, COUNT), **{"more.npy": "1"}))
    with pytest.raises(ManifestError, match=r"4 of 24 samples have none: no annotations for 'deep/000\d.npy'"):
        len(opened(folder, annotations=table))
    empty = opened(folder, annotations=Annotations(table, missing="none"))
    assert sorted((int(s["npy"][0]), s["tag"]) for s in empty) == [(n, None if n < 4 else 3 * n) for n in range(COUNT)]
    dropped = opened(folder, annotations=Annotations(table, missing="drop"))
    assert sorted(int(s["npy"][0]) for s in dropped) == list(range(4, COUNT))
    assert len(dropped.select(fraction=(0, 0.5))) + len(dropped.select(fraction=(0.5, 1))) == COUNT - 4


def test_a_missing_row_of_a_tar_is_found_when_it_is_read(opened: Open, tars: Path, tmp_path: Path) -> None:
    """A tar's sample without a row is an error when it is read, because keys are in the archives only."""
    table = str(labels_in(tmp_path, range(COUNT - 1)))
    with pytest.raises(DecodeError, match=r"no annotations for '0023'.*keys are like '00\d\d.npy'"):
        list(opened(tars, annotations=table))
    with pytest.raises(ConfigError, match="missing='drop' is for datasets of files"):
        len(opened(tars, annotations=Annotations(table, missing="drop")))
    assert [s["tag"] for s in opened(tars, annotations=Annotations(table, missing="none"))].count(None) == 1


def test_keys_that_fit_nothing_or_two_files_are_refused(opened: Open, folder: Path, tmp_path: Path) -> None:
    """A table whose keys fit no file, or two files with one row, is refused, also where missing rows are allowed."""
    other = tmp_path / "other.csv"
    other.write_text("file_name,tag\nx.npy,1\ny.npy,2\n")
    with pytest.raises(ManifestError, match=r"24 of 24 samples have none.*keys are like '[xy].npy', '[xy].npy'"):
        len(opened(folder, annotations=Annotations(str(other), missing="none")))
    (folder / "twin").mkdir()
    np.save(folder / "twin" / "0003.npy", np.array([3]))
    with pytest.raises(ManifestError, match=r"'\w+/0003.npy' and '\w+/0003.npy' would both have the row '0003.npy'"):
        len(opened(folder, annotations=str(labels_in(tmp_path))))


def test_a_bad_file_names_itself_and_the_reason(opened: Open, folder: Path, tmp_path: Path) -> None:
    """The error for a bad file of annotations has its url and the recoder's reason."""
    table = labels_in(tmp_path, **{"0003.npy": "4"})
    with pytest.raises(ManifestError, match=r"labels.csv: rows 3 and 24 have the same key '0003.npy'"):
        len(opened(folder, annotations=str(table)))
    with pytest.raises(ConfigError, match="has no column of keys, 'image'"):
        len(opened(folder, annotations=Annotations(str(table), key="image")))
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(5 << 30)
    with pytest.raises(ConfigError, match=r"large.json' has 5\.4 GB; up to 2\.0 GB are read"):
        len(opened(folder, annotations=str(tmp_path / "large.json")))
    with pytest.raises(ConfigError, match=r"the name says the kind; \.json, \.csv"):
        Annotations("labels.xlsx")
    with pytest.raises(ConfigError, match="missing='ignore' must be one of"):
        Annotations("labels.csv", missing="ignore")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_metadata_beside_pictures_is_found(opened: Open, tmp_path: Path, kind: str) -> None:
    """A metadata file beside images is joined as Hugging Face does; with format="folder" it is a sample."""
    data = tmp_path / "pictures"
    data.mkdir()
    for number in range(6):
        (data / f"{number}.png").write_bytes(b"not decoded")
    rows = [{"file_name": f"{n}.png", "text": f"picture {n}", "label": n + 10} for n in range(6)]
    text = "file_name,text,label\n" + "".join(f"{row['file_name']},{row['text']},{row['label']}\n" for row in rows)
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (data / f"metadata.{kind}").write_text(text if kind == "csv" else lines)
    dataset = opened(data, decode=None)
    assert sorted((s["__key__"], s["text"], s["label"]) for s in dataset) == [
        (f"{n}.png", f"picture {n}", n + 10) for n in range(6)
    ]
    assert len(opened(data, decode=None, format="folder")) == 7


def test_metadata_that_does_not_name_the_files_is_not_joined(opened: Open, tmp_path: Path, caplog: Any) -> None:
    """A metadata.csv with other keys, as WILDS has, is not joined; the log says so, and `key=` joins it."""
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(b"not decoded")
    (tmp_path / "metadata.csv").write_text("img_filename,y\n" + "".join(f"{n}.png,{n}\n" for n in range(3)))
    dataset = opened(tmp_path, decode=None)
    assert sorted(sample["__key__"] for sample in dataset) == ["0.png", "1.png", "2.png"]
    assert "metadata.csv, beside the files, is not joined" in caplog.text
    given = Annotations(str(tmp_path / "metadata.csv"), key="img_filename")
    assert sorted(sample["y"] for sample in opened(tmp_path, decode=None, annotations=given)) == [0, 1, 2]


@pytest.mark.parametrize("column", ["npy", "__key__", "label"])
def test_columns_do_not_replace_fields(opened: Open, tmp_path: Path, column: str) -> None:
    """A column called like a field of the samples is refused at opening; `fields=` leaves it out."""
    keys = [f"{name}/{number}.npy" for name in ("cat", "dog") for number in range(2)]
    for key in keys:
        (tmp_path / "d" / key).parent.mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / "d" / key, np.zeros(2))
    table = tmp_path / "t.csv"
    table.write_text(f"file_name,{column},more\n" + "".join(f"{key},x,y\n" for key in keys))
    with pytest.raises(ConfigError, match=rf"have a column '{column}', and so are samples' own fields called"):
        len(opened(tmp_path / "d", annotations=str(table)))
    assert opened(tmp_path / "d", annotations=Annotations(str(table), fields=["more"]))[0]["more"] == "y"


def test_columns_do_not_replace_fields_of_tars(opened: Open, tars: Path, tmp_path: Path) -> None:
    """A column called like a field of a tar's samples is refused when a sample is read."""
    table = tmp_path / "t.csv"
    table.write_text("file_name,npy\n" + "".join(f"{name(n)},x\n" for n in range(COUNT)))
    with pytest.raises(DecodeError, match="have a column 'npy'"):
        _ = opened(tars, annotations=str(table))[0]


def test_dropped_samples_are_counted(opened: Open, folder: Path, tmp_path: Path, caplog: Any) -> None:
    """The log counts the samples that `missing="drop"` leaves out."""
    table = labels_in(tmp_path, range(5))
    assert len(opened(folder, annotations=Annotations(str(table), missing="drop"))) == 5
    assert f"{COUNT - 5} of {COUNT} samples have no row" in caplog.text


@pytest.mark.parametrize("is_url", [True, False], ids=["urls", "paths"])
def test_keys_that_begin_above_the_dataset(opened: Open, folder: Path, tmp_path: Path, is_url: bool) -> None:
    """Keys that are whole urls, or paths from above the dataset, are found, also beside those of other splits."""
    before = f"{folder.parent}/" if is_url else ""
    table = tmp_path / "t.csv"
    keys = [f"{folder.name}/{path.relative_to(folder)}" for path in folder.rglob("*.npy")]
    rows = [f"{before}{key},{n}\n" for n, key in enumerate(keys)]
    table.write_text("file_name,n\n" + "".join(rows) + f"{before}val/x/0.npy,0\n")
    found = opened(folder, annotations=str(table), shuffle=False)
    assert {sample["__key__"]: sample["n"] for sample in found} == {
        key.partition("/")[2]: n for n, key in enumerate(keys)
    }


def test_a_changed_table_is_used_after_a_refresh(opened: Open, folder: Path, tmp_path: Path) -> None:
    """A dataset keeps its table of annotations until `refresh`, in workers too, though the file has changed."""
    table = labels_in(tmp_path)
    dataset = opened(folder, annotations=str(table), shuffle=False)
    assert dataset[1]["tag"] == 3
    table.write_text(table.read_text().replace("0001.npy,3\n", "0001.npy,33\n"))
    tags = [sample["tag"] for sample in DataLoader(dataset, num_workers=1, batch_size=None)]
    assert tags[1] == 3
    assert dataset.refresh()
    assert dataset[1]["tag"] == 33
    assert not dataset.refresh()


def test_ranks_compare_their_tables(opened: Open, folder: Path, tmp_path: Path) -> None:
    """The digest that ranks compare follows from the rows alone, not from the table's place or their order."""
    first = labels_in(tmp_path)
    rows = first.read_text().splitlines()
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "labels.csv").write_text("\n".join([rows[0], *reversed(rows[1:])]))
    (tmp_path / "other.csv").write_text(first.read_text().replace(",3\n", ",4\n"))
    digests = [
        opened(folder, annotations=str(table))._opening.prepare(4, None).facts()["annotations"]
        for table in (first, tmp_path / "copy" / "labels.csv", tmp_path / "other.csv")
    ]
    assert digests[0] == digests[1] != digests[2]
    assert opened(folder)._opening.prepare(4, None).facts()["annotations"] == "none"


def test_members_of_a_mix_have_their_own(opened: Open, folder: Path, tars: Path, tmp_path: Path) -> None:
    """Each sample of a mix has the annotations of its member."""
    boxes = opened(folder, annotations=coco_in(tmp_path))
    tags = opened(tars, annotations={"url": str(labels_in(tmp_path)), "fields": ["tag"]})
    mix = MixedDataset({"boxes": boxes, "tags": tags})
    found = list(mix)
    mix.close()
    assert {"boxes" if "boxes" in sample else "tags" for sample in found} == {"boxes", "tags"}
    assert all(sample["tag"] == 3 * int(sample["npy"][0]) for sample in found if "tag" in sample)


def test_show_prints_them(folder: Path, tmp_path: Path) -> None:
    """`streamer show --annotations` prints the fields of the sample's row."""
    command = [sys.executable, "-m", "streamer", "show", str(folder), "--key", "deep/0004.npy"]
    done = subprocess.run(
        [*command, "--annotations", str(coco_in(tmp_path))], capture_output=True, text=True, check=True
    )
    assert "boxes" in done.stdout
    assert "image_id  int 4" in done.stdout


def test_a_removed_cache_folder_gets_its_tables_back(
    opened: Open, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers that start after the cache folder was removed open the dataset's table, though its file has changed."""
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "run"))
    cache = tmp_path / "cache"
    table = labels_in(tmp_path)
    dataset = opened(folder, annotations=str(table), cache_dir=cache)
    digest = dataset._opening.prepare(4, None).facts()["annotations"]
    with StreamingDataLoader(dataset, batch_size=5, num_workers=1, collate_fn=list) as loader:
        list(loader)
    published = cache / "manifests" / str(digest)
    assert {file.name for file in published.iterdir()} == {HEAD_NAME, ROWS_NAME}, "not what it is made from"
    table.write_text("file_name,tag\n")
    shutil.rmtree(cache.rename(tmp_path / "away"))
    assert opened(folder, cache_dir=cache)[2]  # its chunk is fetched: the engine sees that the folder is gone
    assert published.is_dir()
    with StreamingDataLoader(dataset, batch_size=5, num_workers=1, collate_fn=list) as loader:
        assert {int(s["npy"][0]): s["tag"] for batch in loader for s in batch} == {n: 3 * n for n in range(COUNT)}
