"""Packs by real processes of sources that are decoded in blocks: Parquet, compressed MDS, compressed tars and lines."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import cramjam
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamer
from streamer.errors import ManifestError, RecodeError
from tests.e2e.test_pack import samples_of
from tests.formats.cases import DATA
from tests.tars import tar_of

ROWS = 900


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Returns two files of row groups of 100 rows: an image's bytes, a text, and a number."""
    numbers = np.random.default_rng(1)
    (tmp_path / "table").mkdir()
    for part in range(2):
        rows = range(part * ROWS // 2, (part + 1) * ROWS // 2)
        columns = {
            "image": [b"\xff\xd8\xff" + numbers.bytes(i) for i in rows],
            "caption": [f"row {i}" for i in rows],
            "label": [i % 7 for i in rows],
        }
        pq.write_table(pa.table(columns), tmp_path / f"table/{part}.parquet", row_group_size=100)
    return tmp_path / "table"


@pytest.mark.parametrize("order", [pytest.param("manifest", marks=pytest.mark.slow), "shuffle"])
def test_parquet_becomes_tars(table: Path, tmp_path: Path, order: str) -> None:
    """`pack` writes every row of Parquet to shards of whole row groups, and mixes their rows when it shuffles."""
    packed = streamer.pack(table, tmp_path / "tars", shard_bytes="400kB", order=order, seed=3, executor="processes:2")  # type: ignore[arg-type]
    found = samples_of(tmp_path / "tars")
    assert (packed.shards, packed.samples) == (3, ROWS)
    rows = [row for path in sorted(table.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    assert found == {
        f"{i:09d}": {"image.jpg": row["image"], "caption.txt": row["caption"].encode(), "cls": b"%d" % row["label"]}
        for i, row in enumerate(rows)
    }
    assert (list(found) == sorted(found)) is (order == "manifest")


@pytest.mark.slow
def test_the_same_command_writes_the_same(table: Path, tmp_path: Path) -> None:
    """A pack writes the same bytes on one process and on three, and a lost shard again as it was."""
    for name, on in (("one", "processes:1"), ("three", "processes:3")):
        streamer.pack(table, tmp_path / name, fields=["caption"], order="shuffle", shard_bytes="400kB", executor=on)
    one, three = ({p.name: p.read_bytes() for p in (tmp_path / name).glob("*.tar")} for name in ("one", "three"))
    assert one == three
    (tmp_path / "one/shard-000001.tar").unlink()
    streamer.pack(
        table, tmp_path / "one", fields=["caption"], order="shuffle", shard_bytes="400kB", executor="processes:1"
    )
    assert (tmp_path / "one/shard-000001.tar").read_bytes() == three["shard-000001.tar"]


@pytest.mark.slow
def test_compressed_mds(tmp_path: Path) -> None:
    """Compressed MDS, as MosaicML's writer has made it, is packed into the same samples as the decompressed files."""
    folder = tmp_path / "zstd"
    shutil.copytree(DATA / "mds/zstd", folder, ignore=shutil.ignore_patterns("expected.json"))
    plain = tmp_path / "plain"
    plain.mkdir()
    index = json.loads((folder / "index.json").read_text())
    for shard in index["shards"]:
        raw = bytes(cramjam.zstd.decompress((folder / shard["zip_data"]["basename"]).read_bytes()))
        (plain / shard["raw_data"]["basename"]).write_bytes(raw)
        shard.update(compression=None, zip_data=None)
    (plain / "index.json").write_text(json.dumps(index))
    for name in ("zstd", "plain"):
        streamer.pack(tmp_path / name, tmp_path / f"{name}-tars", executor="processes:1")
    found = samples_of(tmp_path / "zstd-tars")
    assert len(found) == 56
    assert found == samples_of(tmp_path / "plain-tars")
    streamer.pack(folder, tmp_path / "some", fields={"text": "txt", "any": "vector"}, executor="processes:1")
    wanted = [{"txt": sample["text.txt"], "vector.npy": sample["any.npy"]} for sample in found.values()]
    assert list(samples_of(tmp_path / "some").values()) == wanted


def test_compressed_tars_keep_their_keys(tmp_path: Path) -> None:
    """Samples of compressed tars keep their keys and fields when they are packed."""
    (tmp_path / "packed").mkdir()
    entries = [(f"{number:03d}.{name}", b"%d" % number) for number in range(50) for name in ("jpg", "cls")]
    (tmp_path / "packed/a.tar.gz").write_bytes(gzip.compress(tar_of(entries)))
    streamer.pack(tmp_path / "packed", tmp_path / "tars", executor="processes:1")
    assert samples_of(tmp_path / "tars") == {f"{n:03d}": {"jpg": b"%d" % n, "cls": b"%d" % n} for n in range(50)}


def test_a_damaged_block_is_named(table: Path, tmp_path: Path) -> None:
    """`pack` names the object and bytes of a damaged block, and a compressed file that is cut off."""
    path = table / "1.parquet"
    content = bytearray(path.read_bytes())
    content[40_000:60_000] = bytes(20_000)
    path.write_bytes(content)
    with pytest.raises(RecodeError, match=r"(?s)table/1\.parquet \[\d+, \d+\): .*format 'parquet'"):
        streamer.pack(table, tmp_path / "tars", executor="processes:1")
    assert list((tmp_path / "tars").rglob("*.spool")) == []
    (tmp_path / "lines").mkdir()
    lines = gzip.compress(b"".join(json.dumps({"n": n}).encode() + b"\n" for n in range(1000)))
    (tmp_path / "lines/a.jsonl.gz").write_bytes(lines[:-100])
    with pytest.raises(ManifestError, match=r"a\.jsonl\.gz"):
        streamer.pack(tmp_path / "lines", tmp_path / "again", executor="processes:1")
    assert not (tmp_path / "again").exists()
