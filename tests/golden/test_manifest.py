"""The manifest's bytes and names: what version 1 wrote stays readable, and the same input gives the same digests.

A failure here means that users index again and lose their caches. If that is meant, raise `layout.VERSION` and
write the folders anew with `python tests/golden/test_manifest.py`.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from streamer.formats import detect
from streamer.indexing.build import BuildOptions, build
from streamer.manifest.model import Extent, ObjectRecord
from streamer.manifest.table import Manifest
from streamer.manifest.validation import open_and_verify

FOLDER = Path(__file__).parent / "manifest-v1"


def header(name: str, size: int) -> bytes:
    """A ustar header with nothing in it that depends on a library."""
    raw = bytearray(512)
    raw[: len(name)] = name.encode()
    raw[124:136] = b"%011o\0" % size
    raw[156:157] = b"0"
    raw[257:265] = b"ustar\x0000"
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw)
    return bytes(raw)


def archive(number: int) -> bytes:
    out = b""
    for i in range(5):
        for ending, size in (("bin", 300 * i * (number + 1)), ("cls", 1)):
            content = bytes([number * 16 + i]) * size
            out += header(f"{number}/{i}.{ending}", size) + content + bytes(-size % 512)
    return out + bytes(1024)


DATASETS: dict[str, dict[str, bytes]] = {
    "webdataset": {f"s3://golden/tars/{number}.tar": archive(number) for number in range(3)},
    "folder": {
        f"s3://golden/files/{name}/ü{i}.bin": bytes([i]) * (i * 100) for name in ("cat", "dog") for i in range(20)
    },
}


class Golden:
    """Stands for an object store: lists and reads a dataset from memory, with versions that follow from the bytes."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects

    async def list(self, url: str) -> AsyncIterator[Sequence[ObjectRecord]]:
        yield [ObjectRecord(u, len(b), f"etag:{sha256(b).hexdigest()[:32]}") for u, b in self.objects.items()]

    async def read(self, extent: Extent) -> bytes:
        return self.objects[extent.object.url][extent.start : extent.stop]


def built(name: str, root: Path) -> Manifest:
    source = Golden(DATASETS[name])
    bucket, folder = next(iter(source.objects)).split("/")[2:4]
    work = build(
        f"s3://{bucket}/{folder}/",
        root,
        lister=source,
        reader=source,
        choose_format=detect.chooser("auto"),
        options=BuildOptions(chunk_bytes=4096),
    )
    return asyncio.run(work)


def described(manifest: Manifest) -> dict[str, object]:
    """Everything a manifest says, in plain values."""
    return {
        "digest": manifest.digest,
        "format": manifest.format,
        "urls": list(manifest.urls),
        "classes": list(manifest.classes),
        "chunks": [
            {
                "key": chunk.key.hex(),
                "samples": chunk.samples,
                "local_bytes": chunk.local_bytes,
                "extents": [[e.object.url, e.object.version, e.start, e.stop] for e in chunk.extents],
                "offsets": manifest.sample_offsets(chunk.index).tolist(),
            }
            for chunk in map(manifest.chunk, range(manifest.chunks))
        ],
        "names": [[n.object_key, n.label] for n in map(manifest.name, range(manifest.samples))],
        "starts": manifest.locate(np.arange(manifest.samples))[1].tolist(),
    }


@pytest.mark.parametrize("name", list(DATASETS))
def test_what_was_written_is_read(name):
    """A manifest of version 1 that the repository keeps opens, verifies, and gives the values recorded with it."""
    expected = json.loads((FOLDER / f"{name}.json").read_text())
    assert described(open_and_verify(FOLDER / name)) == expected


@pytest.mark.parametrize("name", list(DATASETS))
def test_what_is_written_is_the_same(name, tmp_path):
    """A dataset that is indexed now has the digest, keys, cuts and order that it had when the version began."""
    assert described(built(name, tmp_path)) == json.loads((FOLDER / f"{name}.json").read_text())


@pytest.mark.parametrize("name", list(DATASETS))
def test_the_files_are_the_same(name, tmp_path):
    """A manifest that is written now equals the kept one in every byte of every file, root.json included."""
    manifest = built(name, tmp_path)
    kept = FOLDER / name
    assert {p.name for p in kept.iterdir()} == {p.name for p in manifest.path.iterdir()}
    for path in kept.iterdir():
        assert (manifest.path / path.name).read_bytes() == path.read_bytes()


def write() -> None:
    """Writes the folders anew."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    for name in DATASETS:
        with tempfile.TemporaryDirectory() as root:
            manifest = built(name, Path(root))
            shutil.copytree(manifest.path, FOLDER / name)
        text = json.dumps(described(Manifest.open(FOLDER / name)), ensure_ascii=False, indent=1)
        (FOLDER / f"{name}.json").write_text(text + "\n")


if __name__ == "__main__":
    write()
