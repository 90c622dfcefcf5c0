"""Raw files meet the contract of the formats, and the classes of their folders are read through the engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamer import StreamingDataset
from streamer.client.settings import ClientSettings
from streamer.errors import DecodeError
from streamer.formats.folder import Folder
from tests.formats.cases import Case
from tests.formats.contract import FormatContract, engine_below
from tests.formats.summary import KEY, summary

FILES = {f"{number:02d}.bin": bytes([number]) * (number * 37) for number in range(24)}


class TestFolder(FormatContract):
    @classmethod
    def cases(cls) -> list[Case]:
        samples = [{KEY: name, "bin": summary(content)} for name, content in FILES.items()]
        return [Case("files", Folder(), FILES, samples)]


def _files(folder: Path, keys: list[str]) -> Path:
    for key in keys:
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        (folder / key).write_bytes(b"1234")
    return folder


def test_a_class_does_not_replace_a_field(
    engine: ClientSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file's field "label" is not replaced by the class of its folder, and such a dataset is refused.

    SemanticKITTI has files called 000000.label; below the folder of a sequence their class would be its number.
    """
    engine_below(engine.cache_dir.parent, monkeypatch)
    folder = _files(tmp_path / "d", ["00/000000.label"])
    why = r"a field 'label' of its own, and so would be called the number of its class folder"
    with StreamingDataset(folder, cache_dir=engine.cache_dir) as dataset, pytest.raises(DecodeError, match=why):
        _ = dataset[0]
    with StreamingDataset(folder / "00", cache_dir=engine.cache_dir) as dataset:
        assert dataset[0]["label"] == b"1234"


def test_a_validation_set_has_the_classes_of_training(
    engine: ClientSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A validation set takes the classes of training by `Folder(classes=...)`, also where it lacks one of them."""
    engine_below(engine.cache_dir.parent, monkeypatch)
    train = _files(tmp_path / "train", ["bird/1.bin", "cat/1.bin", "dog/1.bin"])
    valid = _files(tmp_path / "val", ["bird/1.bin", "dog/1.bin"])
    with StreamingDataset(train, cache_dir=engine.cache_dir) as dataset:
        classes = dataset.classes
    with StreamingDataset(valid, cache_dir=engine.cache_dir, format=Folder(classes=classes)) as dataset:
        assert dataset.classes == classes
        assert {sample["__key__"]: sample["label"] for sample in dataset} == {"bird/1.bin": 0, "dog/1.bin": 2}
        assert dataset.select(labels=["dog"]).samples == 1
