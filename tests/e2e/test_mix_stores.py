"""A mix of two buckets of a fake S3 with credentials of their own: one does not stop the other."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from streamer import MixedDataset, StreamingDataLoader, StreamingDataset
from streamer.errors import AccessDeniedError
from tests.e2e.keyed_s3 import KeyedS3

# A chunk has at most 8 MiB: each member has three.
SAMPLES = 24
LENGTH = 250_000


def arrays(first: int) -> dict[str, bytes]:
    found = {}
    for number in range(SAMPLES):
        sink = io.BytesIO()
        np.save(sink, np.full(LENGTH, first + number, np.int32))
        found[f"{number:03}.npy"] = sink.getvalue()
    return found


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KeyedS3]:
    store = KeyedS3({"a": arrays(0), "b": arrays(1000)}, {"a": "keyofa", "b": "keyofb"})
    monkeypatch.setenv("STREAMER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "run"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    yield store
    store.close()


def mix(store: KeyedS3, key_of_b: str = "keyofb", **options: object) -> MixedDataset:
    keys = {"a": "keyofa", "b": key_of_b}
    members = {
        name: StreamingDataset(f"s3://{name}/", storage_options=store.options(key), cache_bytes="1GB")
        for name, key in keys.items()
    }
    return MixedDataset(members, **options)


def test_each_member_is_read_with_its_own_credentials(stores):
    """Each member of a mix is read with its own credentials, and an epoch has every sample of both."""
    data = mix(stores)
    with StreamingDataLoader(data, 8, 1) as loader:
        found = sorted(number for batch in loader for number in batch["npy"][:, 0].tolist())
    data.close()
    assert found == [*range(SAMPLES), *range(1000, 1000 + SAMPLES)]


def test_wrong_credentials_name_the_member(stores):
    """Wrong credentials of a member raise AccessDeniedError with the member's name, before any object is read."""
    data = mix(stores, key_of_b="keyofa")
    with pytest.raises(AccessDeniedError, match=r"^member b: "):
        len(data)
    data.close()
    assert stores.reads == []


@pytest.mark.slow
def test_a_store_that_asks_for_less_does_not_stop_the_other(stores, tmp_path, monkeypatch):
    """While one store answers 503, chunks of the other arrive ahead; the epoch then goes on in the same order."""
    data = mix(stores, batch_size=8)
    expected = [int(sample["npy"][0]) for sample in data]
    data.close()
    monkeypatch.setenv("STREAMER_CACHE_DIR", str(tmp_path / "cold"))
    stores.reads.clear()
    stores.slow_down = "b"
    again = mix(stores)
    ended = threading.Event()

    def answer_again() -> None:
        # All of a is there although the first batch needs b.
        while not ended.wait(0.02):
            read = {key for bucket, key, status in stores.reads if (bucket, status) == ("a", 206)}
            if read == set(stores.buckets["a"]):
                stores.slow_down = ""
                return

    watcher = threading.Thread(target=answer_again)
    watcher.start()
    with StreamingDataLoader(again, 8, 1) as loader:
        found = [number for batch in loader for number in batch["npy"][:, 0].tolist()]
    ended.set()
    watcher.join()
    again.close()
    assert stores.slow_down == "", "the chunks of a did not wait for b"
    assert ("b", 503) in {(bucket, status) for bucket, _, status in stores.reads}
    assert found == expected
