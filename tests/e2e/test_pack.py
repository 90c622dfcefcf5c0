"""Packs as tars, by real processes and commands: what was packed is read, and the manifest is that of an index."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import streamer
from streamer import StreamingDataset
from streamer.errors import ConfigError, IntegrityError, PackError
from streamer.shards.progress import PackProgress
from tests.tars import tar_of

Sample = dict[str, bytes]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Returns 300 files of up to 3 kB in three class folders; one is empty, one has a long name."""
    random = np.random.default_rng(1)
    for number in range(300):
        name = f"{number:03d}" if number != 7 else "long-" * 30
        path = tmp_path / "images" / ("cat", "dog", "owl")[number % 3] / f"{name}.v1.JPG"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.bytes(number * 10))
    return tmp_path / "images"


@pytest.fixture(scope="module")
def here() -> Iterator[Executor]:
    """Returns a thread pool for what processes do in the same way, because each takes half a second of CPU to start."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        yield pool


def samples_of(folder: Path) -> dict[str, Sample]:
    """Returns every sample of the tars, as Python's own tarfile reads them, in order."""
    found: dict[str, Sample] = {}
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as archive:
            for member in archive:
                key, _, field = member.name.rpartition("/")[2].partition(".")
                place = member.name.rpartition("/")[0]
                content = archive.extractfile(member)
                assert content is not None
                found.setdefault(f"{place}/{key}" if place else key, {})[field] = content.read()
    return found


def expected(images: Path) -> dict[str, Sample]:
    """Returns the samples of the folder."""
    return {
        f"{path.parent.name}/{path.name[:-4].replace('.', '_')}": {
            "jpg": path.read_bytes(),
            "cls": b"%d" % ("cat", "dog", "owl").index(path.parent.name),
        }
        for path in images.rglob("*.JPG")
    }


def test_a_folder_becomes_tars(images: Path, tmp_path: Path) -> None:
    """`pack` writes every file of a folder, with its class, to shards of the size asked for, and reports progress."""
    steps: list[PackProgress] = []
    packed = streamer.pack(
        images, tmp_path / "tars", shard_bytes="200kB", executor="processes:2", on_progress=steps.append
    )
    assert samples_of(tmp_path / "tars") == expected(images)
    assert (packed.shards, packed.samples) == (5, 300)
    assert packed.bytes == sum(path.stat().st_size for path in (tmp_path / "tars").glob("*.tar"))
    assert [step.shards_done for step in steps] == list(range(6))
    assert (steps[-1].samples_done, steps[-1].bytes_done, steps[-1].bytes) == (300, packed.bytes, packed.bytes)
    assert list((tmp_path / "tars").rglob("*.spool")) == []


@pytest.mark.parametrize("order", [pytest.param("name", marks=pytest.mark.slow), "shuffle"])
def test_orders(images: Path, tmp_path: Path, here: Executor, order: str) -> None:
    """A pack by name ascends over all shards, and a shuffled one mixes the classes; the samples are the same."""
    streamer.pack(images, tmp_path / "tars", shard_bytes="200kB", order=order, seed=4, executor=here)  # type: ignore[arg-type]
    found = samples_of(tmp_path / "tars")
    assert found == expected(images)
    folders = [key.partition("/")[0] for key in found]
    changes = sum(a != b for a, b in pairwise(folders))
    assert (changes == 2) if order == "name" else (changes > 100)


def test_the_manifest_is_that_of_an_index(
    images: Path, tmp_path: Path, here: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest of a pack has the digest of an index of its shards, and training reads what was packed."""
    monkeypatch.setenv("STREAMER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "run"))
    packed = streamer.pack(images, tmp_path / "tars", shard_bytes="200kB", executor=here)
    command = [sys.executable, "-m", "streamer"]
    done = subprocess.run([*command, "index", f"{tmp_path}/tars/"], capture_output=True, text=True, check=True)
    assert f"digest {packed.digest}" in done.stdout
    dataset = StreamingDataset(f"{tmp_path}/tars/", decode=None)
    found = {sample["__key__"]: {"jpg": sample["jpg"], "cls": sample["cls"]} for sample in dataset}
    dataset.close()
    assert found == expected(images)


def test_tars_are_packed_again(images: Path, tmp_path: Path, here: Executor) -> None:
    """Tars can be packed again, shuffled and with some of their fields under other names, from an earlier index."""
    streamer.pack(images, tmp_path / "tars", shard_bytes="200kB", executor=here)
    streamer.pack(
        tmp_path / "tars",
        tmp_path / "again",
        fields={"jpg": "image.jpg"},
        order="shuffle",
        shard_bytes="100kB",
        executor=here,
        manifest=str(tmp_path / "tars/.streamer"),
    )
    wanted = {key: {"image.jpg": sample["jpg"]} for key, sample in expected(images).items()}
    found = samples_of(tmp_path / "again")
    assert found == wanted
    assert list(found) != list(samples_of(tmp_path / "tars"))


def test_a_transform_changes_samples(images: Path, tmp_path: Path) -> None:
    """A transform of `pack` gets bytes and label, may give any values, and leaves a sample out by returning None."""

    def shrink(sample: dict[str, object]) -> dict[str, object] | None:
        content = sample["jpg"]
        assert isinstance(content, bytes)
        if len(content) % 20:
            return None
        return {"head": np.frombuffer(content[:4], np.uint8), "n": len(content), "label": sample["label"]}

    streamer.pack(images, tmp_path / "tars", transform=shrink, shard_bytes="50kB", executor="processes:2")
    found = samples_of(tmp_path / "tars")
    wanted = {key: sample for key, sample in expected(images).items() if len(sample["jpg"]) % 20 == 0}
    assert found.keys() == wanted.keys()
    for key, sample in found.items():
        assert np.load(io.BytesIO(sample["head.npy"])).tobytes() == wanted[key]["jpg"][:4]
        assert json.loads(sample["json"]) == {"n": len(wanted[key]["jpg"])}
        assert sample["cls"] == wanted[key]["cls"]


def made(count: int) -> Iterator[Mapping[str, object]]:
    """Yields samples as a program makes them."""
    for number in range(count):
        yield {
            "__key__": f"s{number:04d}",
            "text": f"number {number}",
            "vector": np.full(10, number),
            "score": number / 2,
        }


def test_an_iterable_is_packed(tmp_path: Path) -> None:
    """An iterable is packed in its order, and a second pack writes only the shards that are not there."""
    packed = streamer.pack(made(500), tmp_path / "tars", shard_bytes="300kB")
    found = samples_of(tmp_path / "tars")
    assert list(found) == [f"s{number:04d}" for number in range(500)]
    assert json.loads(found["s0007"]["json"]) == {"score": 3.5}
    assert found["s0007"]["text"] == b"number 7"
    assert np.load(io.BytesIO(found["s0007"]["vector.npy"])).tolist() == [7] * 10
    before = {path.name: path.stat().st_ino for path in (tmp_path / "tars").glob("*.tar")}
    (tmp_path / "tars/shard-000001.tar").unlink()
    assert streamer.pack(made(500), tmp_path / "tars", shard_bytes="300kB").samples == packed.samples
    after = {path.name: path.stat().st_ino for path in (tmp_path / "tars").glob("*.tar")}
    # The number of the file that was removed may be given again.
    assert {name for name in before if before[name] == after[name]} >= before.keys() - {"shard-000001.tar"}


def test_an_iterable_that_fails_goes_on_the_next_time(tmp_path: Path) -> None:
    """A failing iterable's error is raised as it is and leaves no manifest or temporary file; the next pack goes on."""

    def failing() -> Iterator[Mapping[str, object]]:
        yield from made(400)
        raise RuntimeError("the disk of the samples is gone")

    with pytest.raises(RuntimeError, match="of the samples"):
        streamer.pack(failing(), tmp_path / "tars", shard_bytes="300kB")
    assert not (tmp_path / "tars/.streamer/root.json").exists()
    assert list((tmp_path / "tars").rglob("*.spool")) == []
    assert streamer.pack(made(500), tmp_path / "tars", shard_bytes="300kB").samples == 500


@pytest.mark.slow
def test_a_pack_is_verified(images: Path, tmp_path: Path) -> None:
    """`streamer verify` finds and names a changed byte, a lost shard, a lost manifest and a stray tar.

    Another pack mends what is changed or lost.
    """

    def verify(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "streamer", "verify", f"{tmp_path}/tars", *options]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def mended() -> None:
        streamer.pack(images, tmp_path / "tars", shard_bytes="200kB", executor="processes:1")
        assert verify("--every").returncode == 0

    mended()
    done = verify()
    assert done.stdout.startswith("5 shards, 300 samples, ")
    assert "; 5 samples read, their checksums agree" in done.stdout
    shard = tmp_path / "tars/shard-000003.tar"
    times = shard.stat()
    content = bytearray(shard.read_bytes())
    content[60_000] ^= 1
    shard.write_bytes(content)
    os.utime(shard, ns=(times.st_atime_ns, times.st_mtime_ns))
    done = verify("--every")
    assert done.returncode == 1
    assert "shard-000003.tar: sample" in done.stderr
    os.utime(shard)
    assert "shard-000003.tar has" in verify().stderr
    mended()
    shard.unlink()
    assert "shard-000003.tar is gone" in verify().stderr
    mended()
    (tmp_path / "tars/.streamer/root.json").unlink()
    assert "has no root.json" in verify().stderr
    mended()
    (tmp_path / "tars/stray.tar").write_bytes(tar_of([("a.txt", b"x")]))
    assert "stray.tar is not a shard of this pack" in verify().stderr


def test_what_cannot_be_packed_is_said(images: Path, tmp_path: Path, here: Executor) -> None:
    """`pack` names a sample that a transform refuses, and leaves a destination that holds something else as it is.

    So do other causes: missing fields, equal keys, no samples, samples that are no dict.
    """

    def refuse(sample: dict[str, object]) -> dict[str, object]:
        raise ValueError("no thanks")

    with pytest.raises(
        PackError, match=r"sample \d+ of .*/images/.*JPG, key '.*': .*refuse raised ValueError: no thanks"
    ):
        streamer.pack(images, tmp_path / "tars", transform=refuse, executor="processes:1")
    with pytest.raises(ConfigError, match=r"holds the shards of another pack, with .*transform '.*refuse' and not ''"):
        streamer.pack(images, tmp_path / "tars", executor="processes:1")
    for target in (images, images / "tars", images.parent):
        with pytest.raises(ConfigError, match="one folder, or one is within the other"):
            streamer.pack(images, target)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"is not empty: 1 objects, the first is notes\.txt"):
        streamer.pack(images, tmp_path / "full")
    assert os.listdir(tmp_path / "full") == ["notes.txt"]
    with pytest.raises(PackError, match="has no field 'png'; it has jpg, label"):
        streamer.pack(images, tmp_path / "fields", fields=["png"], executor=here)
    with pytest.raises(PackError, match=r"sample 1 of the iterable, key 'a': its key 'a' is that of sample 0 too"):
        streamer.pack([{"__key__": "a", "txt": "1"}, {"__key__": "a", "txt": "2"}], tmp_path / "double")
    with pytest.raises(PackError, match="no sample is left"):
        streamer.pack(images, tmp_path / "none", transform=lambda sample: None, executor=here)
    with pytest.raises(PackError, match="gives no samples"):
        streamer.pack(iter(()), tmp_path / "nothing")
    with pytest.raises(PackError, match="sample 0 is a int, not a dict"):
        streamer.pack(iter([5]), tmp_path / "numbers")  # type: ignore[list-item]


def test_a_dry_run_writes_nothing(images: Path, tmp_path: Path) -> None:
    """`streamer pack --dry-run` says how many shards of which size it would write, and writes nothing.

    Without it, `--fields jpg` packs that field alone.
    """
    command = [sys.executable, "-m", "streamer", "pack", str(images), "--out", f"{tmp_path}/tars"]
    done = subprocess.run([*command, "--dry-run", "--shard-bytes", "200kB"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("would write 5 shards of about 18")
    assert not (tmp_path / "tars").exists()
    done = subprocess.run(
        [*command, "--fields", "jpg", "--executor", "processes:1"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("300 samples in 1 shard, ")
    assert "packing: " in done.stderr
    assert [sample.keys() for sample in samples_of(tmp_path / "tars").values()] == [{"jpg"}] * 300


async def test_it_runs_in_a_notebook(tmp_path: Path) -> None:
    """`pack` runs where an event loop runs already, as in a notebook."""
    assert streamer.pack(made(10), tmp_path / "tars").samples == 10


def test_samples_of_a_changed_source_are_not_mixed(images: Path, tmp_path: Path) -> None:
    """`pack` writes a shard anew that another program has overwritten, and refuses a tar that is none of its shards."""
    streamer.pack(images, tmp_path / "tars", shard_bytes="200kB", executor="processes:1")
    (tmp_path / "tars/shard-000000.tar").write_bytes(b"not a tar")
    streamer.pack(images, tmp_path / "tars", shard_bytes="200kB", executor="processes:1")
    assert samples_of(tmp_path / "tars") == expected(images)
    (tmp_path / "tars/extra.tar").write_bytes(tar_of([("a.txt", b"x")]))
    with pytest.raises(IntegrityError, match=r"extra\.tar is not a shard of this pack"):
        streamer.pack(images, tmp_path / "tars", shard_bytes="200kB", executor="processes:1")


@pytest.mark.parametrize("content", [b"", b'{"samples": 3', b"[1]"])
def test_a_damaged_description_of_another_pack_is_a_config_error(images: Path, tmp_path: Path, content: bytes) -> None:
    """A folder whose description of a pack was cut off is still that of another pack, and is left as it is."""
    (tmp_path / "out").mkdir()
    streamer.pack(images, tmp_path / "first", executor="processes:1")
    (described,) = (tmp_path / "first/.streamer/pack").glob("*/job.json")
    other = tmp_path / "out/.streamer/pack" / f"{described.parent.name}0"
    other.mkdir(parents=True)
    (other / "job.json").write_bytes(content)
    with pytest.raises(ConfigError, match="holds the shards of another pack, whose description is lost or damaged"):
        streamer.pack(images, tmp_path / "out", executor="processes:1")
