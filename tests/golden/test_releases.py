"""What each release wrote loads, with the same samples: states (on 1, 2 and 4 ranks), manifests, caches, frames."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec
import pytest

from streamer.wire import messages
from streamer.wire.frames import event_decoder, request_decoder
from tests.golden.releases import (
    GLOBAL_BATCH,
    RELEASES,
    Bucket,
    batches,
    bucket,
    frames,
    opened,
    spell_options,
    written,
)

VERSIONS = sorted(path.name for path in RELEASES.iterdir())


@pytest.fixture(scope="module")
def store() -> Iterator[Bucket]:
    with bucket() as served:
        yield served


@pytest.fixture(scope="module", autouse=True)
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path_factory.mktemp("r")))
        yield


@pytest.fixture(scope="module")
def cache(store: Bucket, runtime: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of this version, whose engine lives as long as the tests of this file."""
    folder = tmp_path_factory.mktemp("c")
    holder = opened("dataset", store.options, folder)
    assert len(holder) == 96
    yield folder
    holder.close()


def states(version: str) -> dict:
    return json.loads((RELEASES / version / "states.json").read_text())


def unpacked(version: str, folder: Path) -> Path:
    """The cache folder of a release."""
    with tarfile.open(RELEASES / version / "cache.tar.gz") as archive:
        archive.extraction_filter = getattr(tarfile, "tar_filter", None)  # since 3.11.4
        archive.extractall(folder)
    return folder / "cache"


def follow(kind: str, saved: dict, count: int, data: list) -> list[list[str]]:
    """The keys of the global batches behind a state, put together from those of the ranks."""
    ranks = []
    for one in data:
        stream = batches(kind, one, GLOBAL_BATCH // len(data), saved["state"])
        ranks.append([keys for keys, _ in islice(stream, count)])
        stream.close()
        one.close()
    return [sorted(key for batch in step for key in batch) for step in zip(*ranks, strict=True)]


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("kind", ["dataset", "mix", "homogeneous"])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_state_goes_on_with_the_same_batches(store: Bucket, cache: Path, version: str, kind: str, ranks: int) -> None:
    """A state that a release saved goes on, on 1, 2 and 4 ranks, with the batches that the release recorded.
    They are the rest of its epoch and the next one; the data is indexed by this version.
    """
    saved = states(version)[kind]
    data = [opened(kind, store.options, cache, rank=rank, world_size=ranks) for rank in range(ranks)]
    assert follow(kind, saved, len(saved["batches"]), data) == saved["batches"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_state_of_a_growing_dataset_goes_on(store: Bucket, cache: Path, version: str) -> None:
    """A growing dataset's state that a release saved goes on with the recorded rest of its epoch.
    Which samples come later depends on what has arrived by then.
    """
    saved = states(version)["growing"]
    assert follow("growing", saved, 3, [opened("growing", store.options, cache)]) == saved["batches"][:3]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_manifest_is_read(store: Bucket, cache: Path, tmp_path: Path, version: str) -> None:
    """A manifest that a release wrote is read by its path, and the release's state goes on with the same batches."""
    saved = states(version)["dataset"]
    manifest = unpacked(version, tmp_path) / "manifests" / saved["state"]["manifest"]
    data = [opened("dataset", store.options, cache, manifest=str(manifest))]
    assert follow("dataset", saved, len(saved["batches"]), data) == saved["batches"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_cache_folder_is_used(store: Bucket, tmp_path: Path, version: str) -> None:
    """A cache folder of a release serves the batches of its state, and no tar is read from the store again."""
    saved = states(version)["dataset"]
    before = len(store.reads)
    data = [opened("dataset", store.options, unpacked(version, tmp_path))]
    assert follow("dataset", saved, len(saved["batches"]), data) == saved["batches"]
    assert [key for key in store.reads[before:] if key.startswith("tars/")] == []


def _protocol_of(version: str) -> int:
    """Returns the number of the protocol of a release."""
    return int(json.loads((RELEASES / version / "frames.json").read_text())["protocol"])


@pytest.mark.parametrize("version", VERSIONS)
def test_frames_of_the_same_protocol_are_read(version: str) -> None:
    """A frame of a release with the same protocol decodes to the message and fields that the release encoded.
    Fields that a later version has added have their defaults.
    """
    found = json.loads((RELEASES / version / "frames.json").read_text())
    if found.pop("protocol") != messages.PROTOCOL:
        # Of another protocol the greetings alone: tests/unit/wire/test_versions.py has what is said then.
        found = {name: one for name, one in found.items() if name in ("Hello", "Welcome")}
    for name, one in found.items():
        decoder = request_decoder() if issubclass(getattr(messages, name), messages.Request) else event_decoder()
        (message,) = decoder.feed(bytes.fromhex(one["frame"]))
        assert type(message).__name__ == name
        fields = msgspec.json.decode(msgspec.json.encode(message, enc_hook=spell_options))
        assert fields[: len(one["fields"])] == one["fields"]


@pytest.mark.parametrize("version", [version for version in VERSIONS if _protocol_of(version) == messages.PROTOCOL])
def test_fields_are_added_at_the_end(version: str) -> None:
    """Within a protocol, the fields of a message that a release knows come first and are unchanged, so that
    its messages mean the same in this version.
    """
    found = json.loads((RELEASES / version / "frames.json").read_text())
    del found["protocol"]
    now = json.loads(msgspec.json.encode(frames()))
    assert {name: now[name]["fields"][: len(one["fields"])] for name, one in found.items()} == {
        name: one["fields"] for name, one in found.items()
    }


def test_the_program_for_a_release_writes_states(store: Bucket, cache: Path) -> None:
    """The program that records a release writes a state whose recorded batches this version delivers after it."""
    saved = written("dataset", store.options, cache)
    assert follow("dataset", saved, 3, [opened("dataset", store.options, cache)]) == saved["batches"][:3]
