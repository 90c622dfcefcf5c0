"""`select(where=...)` on a real engine: exactly the matching samples, over ranks, mixes and resumes."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import uvloop

from streamer import MixedDataset, StreamingDataLoader, StreamingDataset, Weights
from streamer.cli.main import main
from streamer.errors import ConfigError, StateError
from streamer.formats import Folder

ROWS = 120
LANGS = ["en", "de", None]


@pytest.fixture(scope="module", autouse=True)
def _first_loop() -> None:
    """Makes a loop first, because libuv keeps a pipe for signals from the first loop of a process to its end."""
    uvloop.new_event_loop().close()


def row(number: int) -> dict[str, object]:
    """Returns a row, some of which have null or NaN."""
    width = None if number % 7 == 0 else float("nan") if number % 11 == 0 else number * 10.0
    return {"number": number, "width": width, "lang": LANGS[number % 3], "pad": bytes(2000)}


def wanted(number: int) -> bool:
    width = row(number)["width"]
    return width is not None and width >= 300 and row(number)["lang"] == "en"


WHERE = "width >= 300 and lang == 'en'"
MATCHING = [number for number in range(ROWS) if wanted(number)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, standing_engine: Callable[[Path], None]) -> Path:
    """Returns the rows as Parquet, as tars with JSON, as JSON lines, and as files with annotations."""
    root = tmp_path_factory.mktemp("where")
    rows = [row(number) for number in range(ROWS)]
    for kind in ("parquet", "tars", "lines", "files"):
        (root / kind).mkdir()
    for part in range(4):
        some = rows[part * 30 : part * 30 + 30]
        pq.write_table(pa.Table.from_pylist(some), root / "parquet" / f"{part}.parquet", row_group_size=10)
        with tarfile.open(root / "tars" / f"{part}.tar", "w") as tar:
            for one in some:
                body = json.dumps({"width": one["width"], "lang": one["lang"], "number": one["number"]}).encode()
                entry = tarfile.TarInfo(f"{one['number']:04}.json")
                entry.size = len(body)
                tar.addfile(entry, io.BytesIO(body))
        lines = [json.dumps({**one, "pad": "", "width": one["width"]}) for one in some]
        (root / "lines" / f"{part}.jsonl").write_text("\n".join(line.replace("NaN", "0.5") for line in lines))
    head = ["image,width,lang"]
    for one in rows:
        np.save(root / "files" / f"{one['number']:04}.npy", np.full(5, one["number"]))
        width = "" if one["width"] is None else one["width"]
        head.append(f"{one['number']:04}.npy,{width},{one['lang'] or ''}")
    (root / "labels.csv").write_text("\n".join(head))
    standing_engine(root / "parquet")
    return root


def numbers_of(loader: object) -> list[int]:
    return [int(number) for batch in loader for number in batch["number"]]


def read(path: Path, **options: object) -> StreamingDataset:
    return StreamingDataset(path, transform=lambda sample: {"number": sample["number"]}, **options)


def test_a_condition_on_parquet(data):
    """A condition on Parquet needs no index; length, digest and epochs are those of the matching samples."""
    whole = read(data / "parquet")
    part, same, other = whole.select(where=WHERE), whole.select(where=WHERE), whole.select(where="lang == 'en'")
    assert part.samples == len(MATCHING)
    assert [part[i]["number"] for i in range(part.samples)] == MATCHING
    digests = [one._member.open().digest for one in (whole, part, same, other)]
    assert digests[1] == digests[2]
    assert len(set(digests)) == 3
    with StreamingDataLoader(part, 4, 2, report_every=None) as loader:
        for _ in range(2):
            assert sorted(numbers_of(loader)) == MATCHING
        state = loader.state_dict()
    with StreamingDataLoader(other, 4, report_every=None) as loader, pytest.raises(StateError, match="manifest was"):
        loader.load_state_dict(state)
    assert part.select(where="number < 60").samples == sum(number < 60 for number in MATCHING)
    assert whole.select(where="lang == 'en' and number in (0, 3, 4)").samples == 2
    for dataset in (whole, part, same, other):
        dataset.close()


def test_ranks_4_2_1(data):
    """A selection by condition gives each matching sample once in a run that is resumed on 4, 2 and 1 ranks."""
    came: Counter[int] = Counter()
    state = None
    for world, batches in ((4, 1), (2, 2), (1, None)):
        states = []
        for rank in range(world):
            dataset = read(data / "parquet", rank=rank, world_size=world).select(where="lang == 'en'")
            with StreamingDataLoader(dataset, 8 // world, report_every=None) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                for number, batch in enumerate(loader, 1):
                    came.update(batch["number"][~loader.repeated].tolist())
                    if number == batches:
                        break
                states.append(loader.state_dict())
            dataset.close()
        state = states[0]
    assert came == Counter(range(0, ROWS, 3))


def test_chunks_without_a_match_are_not_fetched(data, tmp_path, monkeypatch):
    """Chunks without a matching sample are not fetched to the cache."""
    monkeypatch.setenv("STREAMER_CACHE_DIR", str(tmp_path / "cache"))
    shutil.copytree(data / "parquet", tmp_path / "data")
    dataset = read(tmp_path / "data", engine="inline").select(where="number >= 90")
    with StreamingDataLoader(dataset, 4, report_every=None) as loader:
        assert sorted(numbers_of(loader)) == list(range(90, 120))
    manifest, selection = dataset._member.open().manifest, dataset._member.open().selection
    names = {path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()}
    present = [any(key.tobytes().hex() in name for name in names) for key in manifest.chunk_keys]
    assert present == (selection.chunk_samples > 0).tolist()
    assert present.count(False) == 3
    dataset.close()


def test_conditions_on_annotations(data):
    """A condition chooses raw files by columns of their annotations; the error for another column names these."""
    dataset = StreamingDataset(
        data / "files", annotations={"url": str(data / "labels.csv"), "key": "image"}, format=Folder(extensions=["npy"])
    )
    part = dataset.select(where=WHERE)
    assert sorted(int(part[i]["npy"][0]) for i in range(part.samples)) == MATCHING
    with pytest.raises(ConfigError, match=r"names the column 'size'; columns of this dataset are: width, lang\. "):
        _ = dataset.select(where="size > 3").samples
    dataset.close()


@pytest.mark.parametrize(("kind", "prefix"), [("tars", "json."), pytest.param("lines", "", marks=pytest.mark.slow)])
def test_an_index_with_columns(kind, prefix, data, capsys):
    """A condition on tars or JSON lines needs `streamer index --columns`, as its error says.

    All their bytes would be read otherwise; the index leaves the manifest's digest as it is.
    """
    where = f"{prefix}width >= 300 and {prefix}lang == 'en'"
    whole = StreamingDataset(data / kind)
    digest = whole._member.open().manifest.digest
    with pytest.raises(ConfigError, match=rf"streamer index \S+ --columns {prefix}lang"):
        _ = whole.select(where=where).samples
    assert main(["index", str(data / kind), "--columns", f"{prefix}width, {prefix}lang"]) == 0
    assert f"columns: {prefix}width, {prefix}lang" in capsys.readouterr().out
    part = whole.select(where=where)
    samples = [part[i] for i in range(part.samples)]
    assert [int((one["json"] if prefix else one)["number"]) for one in samples] == MATCHING
    assert whole._member.open().manifest.digest == digest
    assert main(["index", str(data / kind), "--columns", "nothing"]) == 2
    assert "no such field" in capsys.readouterr().err
    assert main(["index", str(data / kind), "--columns", "width", "--executor", "processes:1", "--out", "x"]) == 2
    whole.close()


def test_a_key_leads_to_its_sample(data, capsys):
    """`index_of` finds a raw file by the manifest, and other samples by a column of keys, as its error says."""
    whole = StreamingDataset(data / "tars")
    with pytest.raises(ConfigError, match=r"streamer index \S+ --columns __key__"):
        whole.index_of("0042")
    before = whole.get("0042")
    assert main(["index", str(data / "tars"), "--columns", "__key__"]) == 0
    assert whole[whole.index_of("0042")] == before == whole.get("0042")
    half = whole.select(indices=slice(40, None))
    assert half[half.index_of("0042")]["__key__"] == "0042"
    for dataset, key in ((half, "0007"), (whole, "no'such")):
        with pytest.raises(KeyError, match="no sample has the key"):
            dataset.index_of(key)
    assert main(["show", str(data / "tars"), "--key", "0042"]) == 0
    assert ": 0042" in capsys.readouterr().out
    files = StreamingDataset(data / "files")
    assert files[files.index_of("0042.npy")]["npy"][0] == 42
    whole.close()
    files.close()


def test_a_mix(data):
    """A member of a mix that is selected by a condition gives its matching samples and no others."""
    members = {"some": read(data / "parquet").select(where="lang == 'en'"), "all": read(data / "parquet", seed=3)}
    mix = MixedDataset(members, weights=Weights({"some": 1, "all": 1}, epoch_samples=80))
    with StreamingDataLoader(mix, 4, report_every=None) as loader:
        came: Counter[int] = Counter()
        for batch in loader:
            some = (loader.sources == 0) & ~loader.repeated
            came.update(np.asarray(batch["number"])[some].tolist())
    assert came == Counter(range(0, ROWS, 3))
    mix.close()


@pytest.mark.parametrize(
    ("where", "needs_data", "message"),
    [
        pytest.param("width >", False, "at character", id="half"),
        pytest.param("__import__('os').system('x')", False, "Call is not part", id="call"),
        pytest.param("", False, "give a condition", id="empty"),
        pytest.param("width == 'x'", True, "cannot be compared", id="kind"),
        pytest.param("widht > 3", True, "names the column 'widht'", id="misspelt"),
        pytest.param("pad == 'x'", True, "neither a number nor a text", id="bytes"),
        pytest.param("number > 10000", True, "has none of the 120 samples", id="none"),
    ],
)
def test_hostile_conditions(data, where, needs_data, message):
    """A wrong condition is a ConfigError, raised by `select` already if the data need not be known for it."""
    whole = read(data / "parquet")
    with pytest.raises(ConfigError, match=message):
        _ = whole.select(where=where).samples if needs_data else whole.select(where=where)
    whole.close()


def test_sizes_select_samples_of_tars_and_are_refused_for_parquet(data):
    """Sizes select samples of tars, and are refused for Parquet with the advice to select by a condition.

    A sample of a table is a part of a block that is decoded as a whole: it has no stored size.
    """
    tars, table = read(data / "tars"), read(data / "parquet")
    assert 0 < tars.select(max_bytes=10_000).samples <= ROWS
    for sizes in ({"max_bytes": 10}, {"min_bytes": 1}, {"min_bytes": 1, "max_bytes": 10}):
        with pytest.raises(
            ConfigError, match=r"sizes of samples, which are not known in format 'parquet'.*select by where="
        ):
            len(table.select(**sizes))
    tars.close()
    table.close()
