"""A format of another package, found by its entry point, meets the contract and has all features of built-in ones."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType

import pytest

from streamer import StreamingDataset, pack
from streamer.cli.main import main
from streamer.client.engine_client import EngineClient
from streamer.client.settings import ClientSettings
from streamer.errors import ConfigError
from tests.formats.cases import Case
from tests.formats.contract import FormatContract, engine_below

PACKAGE = Path(__file__).parent / "entry_point"
MODULE = "streamer_columns_of_tests"
NAMES = [f"row {number:02d}" for number in range(20)]
NUMBERS = [number * number for number in range(20)]


def columns_module():
    """Returns the package's module, as its entry point imports it."""
    if MODULE not in sys.modules:
        spec = importlib.util.spec_from_file_location(MODULE, PACKAGE / f"{MODULE}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[MODULE] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[MODULE])
    return sys.modules[MODULE]


@pytest.fixture(scope="module", autouse=True)
def _installed() -> Iterator[None]:
    """Puts the package onto the path, also for processes that this one starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PACKAGE)
        yield


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, _installed: None) -> Iterator[ClientSettings]:
    """Starts another engine than that of the built-in formats, which has started without the package."""
    root = tmp_path_factory.mktemp("engine")
    settings = ClientSettings(cache_dir=root / "cache", runtime_dir=root / "run", cache_bytes=10**9)
    with EngineClient(settings) as client:
        client.roots()
        yield settings


def objects() -> dict[str, bytes]:
    """Returns two files of the package's format."""
    write = columns_module().write_columns
    return {"a.cols": write(NUMBERS[:12], NAMES[:12]), "b.cols": write(NUMBERS[12:], NAMES[12:])}


class TestColumnFile(FormatContract):
    """The contract for the package's format: all that a format must do and can do."""

    @classmethod
    def cases(cls) -> list[Case]:
        samples = [{"number": number, "name": name.ljust(8)} for number, name in zip(NUMBERS, NAMES, strict=True)]
        numbers = [{"number": number} for number in NUMBERS]
        chosen = columns_module().ColumnFile
        return [
            Case("columns", chosen(), objects(), samples),
            Case("one column", chosen(columns=("number",)), objects(), numbers),
        ]

    def codecs_in(self, case: Case, av: ModuleType) -> set[int]:
        """Returns the number of the codec that the index wrote into the hints."""
        return {av.Codec("h264", "r").id}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Writes the files, and names folders for an engine of their own."""
    engine_below(tmp_path, monkeypatch)
    return Case("", columns_module().ColumnFile(), objects(), ()).write(tmp_path / "data")


def test_conditions_read_one_column(data: Path, caplog: pytest.LogCaptureFixture):
    """A condition on a format of another package reads its column alone, without an index of columns."""
    caplog.set_level(logging.INFO)
    with closing(StreamingDataset(data, format="columns_of_tests", cache_bytes="1GB")) as dataset:
        part = dataset.select(where="number > 100 and number < 200")
        assert [part[index]["number"] for index in range(part.samples)] == [121, 144, 169, 196]
        with pytest.raises(ConfigError, match="columns of this dataset are: number, name"):
            _ = dataset.select(where="size > 3").samples
    assert any("reads the columns number" in record.message for record in caplog.records)


def test_joins_by_number_and_by_a_column(data: Path):
    """Datasets of another package's format are joined by number and by a column."""
    options = {"format": "columns_of_tests", "cache_bytes": "1GB"}
    with closing(StreamingDataset(data, **options)) as left, closing(StreamingDataset(data, **options)) as right:
        for on in ("__key__", "number"):
            joined = left.join(right, on=on, columns={"name": "other"})
            found = sorted((sample["number"], sample["name"], sample["other"]) for sample in joined)
            names = [name.ljust(8) for name in NAMES]
            assert found == list(zip(NUMBERS, names, names, strict=True))


def test_what_decoding_takes_is_shown(data: Path, capsys: pytest.CaptureFixture[str]):
    """`streamer show` prints the cost of decoding in the format's words."""
    assert main(["show", str(data), "--format", "columns_of_tests", "--sample", "0"]) == 0
    assert "decoding: 2 columns of a row" in capsys.readouterr().out


def test_pack_writes_what_the_format_says(data: Path, tmp_path: Path):
    """A pack in another process writes the fields that the format's packer gives."""
    pack(data, str(tmp_path / "packed"), format="columns_of_tests", executor="processes:1")
    with closing(StreamingDataset(tmp_path / "packed", cache_bytes="1GB")) as dataset:
        assert {dataset[index]["name.txt"] for index in range(dataset.samples)} == {
            name.ljust(8).upper() for name in NAMES
        }
