"""Puts the images into the bucket: as tars for training, and as a class folder."""

from __future__ import annotations

import http.client
import io
import itertools
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple
from urllib.parse import urlsplit

from streamer.errors import StoreError
from streamer.tools.demo.drawing import CLASSES, Picture

BUCKET = "demo"
TARS_URL = f"s3://{BUCKET}/tars/"
FOLDER_URL = f"s3://{BUCKET}/folder/"
MANIFEST_URL = f"s3://{BUCKET}/manifest/"
IMAGES_PER_TAR = 125

# What S3 clients sign with; the demo's server takes any.
ACCESS_KEY = "demo"
SECRET_KEY = "demo"


class Uploaded(NamedTuple):
    """The contents of the bucket after the upload."""

    images: int
    objects: int
    tar_bytes: int
    folder_bytes: int


def storage_options(endpoint: str) -> dict[str, object]:
    """The storage options of fsspec for the demo's server."""
    return {"key": ACCESS_KEY, "secret": SECRET_KEY, "client_kwargs": {"endpoint_url": endpoint}}


def fill(endpoint: str, pictures: Iterable[Picture], progress: Callable[[int], None]) -> Uploaded:
    """Uploads every picture twice: in a tar, and below its class's folder.

    Args:
        endpoint: url of the server.
        pictures: drawn while the earlier ones travel.
        progress: called with the number of images that are there.
    """
    put(endpoint, f"/{BUCKET}", b"")
    sizes = Counter[str]()
    objects = images = 0
    coming = iter(pictures)
    with ThreadPoolExecutor(2) as pool:
        while batch := list(itertools.islice(coming, IMAGES_PER_TAR)):
            files = {f"folder/{CLASSES[one.label]}/{one.key}.jpg": one.jpeg for one in batch}
            uploads = {f"tars/{images // IMAGES_PER_TAR:05d}.tar": _tar(batch), **files}
            list(pool.map(lambda item: put(endpoint, f"/{BUCKET}/{item[0]}", item[1]), uploads.items()))
            for key, content in uploads.items():
                sizes[key.partition("/")[0]] += len(content)
            objects += len(uploads)
            images += len(batch)
            progress(images)
    return Uploaded(images, objects, sizes["tars"], sizes["folder"])


def put(endpoint: str, path: str, content: bytes) -> None:
    """Sends one PUT.

    Raises:
        StoreError: the server refuses it.
    """
    connection = http.client.HTTPConnection(urlsplit(endpoint).netloc, timeout=60)
    try:
        connection.request("PUT", path, body=content, headers={"Authorization": AUTHORIZATION})
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    if answer.status != http.HTTPStatus.OK:
        raise StoreError(f"PUT {path}: the demo's server answers {answer.status} {body[:200]!r}", url=path)


AUTHORIZATION = f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/20260101/us-east-1/s3/aws4_request"


def _tar(pictures: list[Picture]) -> bytes:
    with io.BytesIO() as buffer:
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for picture in pictures:
                for name, content in (("cls", str(picture.label).encode()), ("jpg", picture.jpeg)):
                    member = tarfile.TarInfo(f"{picture.key}.{name}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
        return buffer.getvalue()
