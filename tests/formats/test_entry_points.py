"""A format of another package, installed for trainer and engine, or missing in one; with engines in processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamer import StreamingDataLoader, StreamingDataset
from streamer.errors import ConfigError
from streamer.formats.registry import find_format

MODULE = "streamer_format_of_the_tests"
SOURCE = '''
from streamer.errors import ManifestError
from streamer.formats.base import Field, Format, Need, Span


class Fixed(Format, frozen=True, forbid_unknown_fields=True):
    """Records of one length."""

    name = "fixed"
    record_bytes: int = 4

    def accepts(self, key):
        return key.endswith(".fixed")

    def index(self, source, facts, start=0):
        size = source.record.size
        if size % self.record_bytes:
            raise ManifestError(f"{source.record.url} has {size} bytes")
        yield Need(0, size)
        for at in range(start, size, self.record_bytes):
            yield Span(at, at + self.record_bytes)

    def opener(self, facts):
        return self

    def open(self, content, name):
        return None, [Field("txt", content)]
'''
RECORDS = [f"{number:08d}" for number in range(50)]
OPTIONS = {"record_bytes": 8}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.fixed").write_text("".join(RECORDS[:20]))
    (folder / "b.fixed").write_text("".join(RECORDS[20:]))
    return folder


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Installs the package's files as pip does; engines that this process starts find it, too."""
    place = tmp_path / "site"
    info = place / "streamer_format_of_the_tests-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: streamer-format-of-the-tests\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[streamer.formats]\nfixed = {MODULE}:Fixed\n")
    (place / f"{MODULE}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(place)
    yield place
    sys.modules.pop(MODULE, None)


@pytest.fixture(autouse=True)
def own_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.delenv("STREAMER_ENGINE", raising=False)


def texts(batch: list[dict[str, str]]) -> list[str]:
    return [sample["txt"] for sample in batch]


@pytest.mark.usefixtures("installed")
def test_index_epoch_and_resume(data: Path) -> None:
    """A format of another package is indexed, read in an epoch, and resumed in mid-epoch on two ranks."""
    chosen = find_format("fixed", OPTIONS)
    read: list[str] = []
    dataset = StreamingDataset(data, format=chosen, cache_bytes="1GB")
    with StreamingDataLoader(dataset, 10, 1, collate_fn=texts, report_every=None) as loader:
        assert sorted(text for batch in loader for text in batch) == RECORDS
        steps = iter(loader)
        read += [*next(steps), *next(steps)]
        state = loader.state_dict()
    for rank in range(2):
        other = StreamingDataset(data, format=chosen, cache_bytes="1GB", rank=rank, world_size=2)
        with StreamingDataLoader(other, 5, 0, collate_fn=texts, report_every=None) as loader:
            loader.load_state_dict(state)
            read += [text for batch in loader for text in batch]
        other.close()
    assert sorted(read) == RECORDS
    dataset.close()


@pytest.mark.usefixtures("installed")
def test_options_that_it_does_not_have() -> None:
    """An unknown option of another package's format is refused as those of built-in formats are."""
    with pytest.raises(ConfigError, match=r"format 'fixed'.*record_byte"):
        find_format("fixed", {"record_byte": 8})


def test_a_class_that_is_no_format(installed: Path) -> None:
    """An entry point that is no subclass of Format is refused with its place."""
    (installed / f"{MODULE}.py").write_text("Fixed = 5\n")
    with pytest.raises(ConfigError, match=f"{MODULE}:Fixed is not a subclass"):
        find_format("fixed")


@pytest.mark.usefixtures("installed")
def test_not_installed_where_the_engine_runs(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error for a format that the engine lacks has its name, the entry points' group and the engine's Python."""
    (tmp_path / "streamer.toml").write_text(f"[[datasets]]\nurl = '{data}'\n")
    served = subprocess.Popen(
        [sys.executable, "-m", "streamer", "serve", "--socket", tmp_path / "s", "--config", tmp_path / "streamer.toml"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert served.stdout is not None
        line = served.stdout.readline()
        monkeypatch.setenv("STREAMER_ENGINE", line.removeprefix("listening: STREAMER_ENGINE=").strip())
        dataset = StreamingDataset(data, format=find_format("fixed", OPTIONS))
        with pytest.raises(ConfigError, match="where the engine runs: format='fixed' is not installed") as caught:
            len(dataset)
        assert sys.executable in str(caught.value)
        assert "streamer.formats" in str(caught.value)
        dataset.close()
    finally:
        served.terminate()
        served.communicate()


def test_not_installed_here() -> None:
    """The error for a format that the trainer lacks has its name, the Python and the formats that there are."""
    with pytest.raises(ConfigError, match=r"'fixed' is not installed for .*python.*folder.*webdataset"):
        find_format("fixed")
