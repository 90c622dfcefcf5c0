"""Folder markers: empty objects whose key ends in "/", in a bucket of a moto server.

The S3 console makes one for "Create folder" (https://docs.aws.amazon.com/AmazonS3/latest/userguide/using-folders.html),
Google's console does the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.session import Session

from streamer import StreamingDataset
from streamer.store import open_store
from tests.contract.store_contract import listed
from tests.tars import tar_of

# "train/cat-2.bin" is between "train/cat" and "train/cat/" in the order of keys.
MARKERS = ("train/", "train/cat/", "train/dog/", "train/none/", "train/none.d/")
LISTED = ("train/cat-2.bin", "train/cat/0.bin", "train/cat/empty", "train/dog/1.bin", "train/dog/empty.txt")
CONTENTS = {
    **dict.fromkeys((*MARKERS, "photos/", "photos/cat/", "photos/dog/", "photos/new/", "shards/"), b""),
    **{key: b"" if "empty" in key else b"content" for key in LISTED},
    "photos/cat/0.jpg": b"content",
    "photos/dog/1.jpg": b"content",
    "shards/0.tar": tar_of((f"{number}.txt", b"text") for number in range(3)),
}


@pytest.fixture
def options(moto_endpoint: str) -> Iterator[dict[str, object]]:
    """Options of a bucket `marked` with CONTENTS."""
    told = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing", "region_name": "us-east-1"}
    client = Session().create_client("s3", endpoint_url=moto_endpoint, **told)
    client.create_bucket(Bucket="marked")
    for key, content in CONTENTS.items():
        client.put_object(Bucket="marked", Key=key, Body=content)
    yield {"key": "testing", "secret": "testing", "endpoint_url": moto_endpoint}
    for key in CONTENTS:
        client.delete_object(Bucket="marked", Key=key)
    client.delete_bucket(Bucket="marked")
    client.close()


@pytest.mark.usefixtures("warm_runtime")
@pytest.mark.parametrize("client", ["obstore", "curl", "fsspec"])
async def test_a_listing_has_no_markers(options: dict[str, object], client: str) -> None:
    """A listing has empty objects and no folder markers, neither of the folder itself nor of folders below it."""
    store = open_store("s3://marked", options, client=client)  # type: ignore[arg-type]
    try:
        for url in ("s3://marked/train/", "s3://marked/train", "s3://marked/train/**"):
            found = await listed(store, url)
            assert sorted(url.removeprefix("s3://marked/") for url in found) == sorted(LISTED)
    finally:
        await store.aclose()


def test_the_classes_are_those_without_markers(options: dict[str, object], tmp_path: Path) -> None:
    """Class folders with markers give their own classes and labels, and not one class for the folder above them."""
    dataset = StreamingDataset(
        "s3://marked/photos/", storage_options=options, cache_dir=tmp_path / "cache", shuffle=False, decode=None
    )
    assert dataset.classes == ["cat", "dog"]
    assert [int(sample["label"]) for sample in dataset] == [0, 1]
    dataset.close()


def test_tars_below_a_marker(options: dict[str, object], tmp_path: Path) -> None:
    """A folder marker beside tars does not count as a file of another format."""
    dataset = StreamingDataset("s3://marked/shards/", storage_options=options, cache_dir=tmp_path / "cache")
    assert len(dataset) == 3
    dataset.close()
