"""Packs as tokens: files as Megatron-LM writes them, whose windows training reads; and a killed pack goes on."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamer
from streamer import StreamingDataset
from streamer.cli.main import main
from streamer.errors import ConfigError, PackError
from streamer.manifest.table import Manifest
from streamer.tables.tokens.format import Tokens

HEAD = struct.Struct("<9sQBQQ")
DTYPES = {4: "<i4", 8: "<u2"}


def made(count: int) -> Iterator[Mapping[str, Any]]:
    """Yields documents of up to 300 tokens, every eleventh without any."""
    numbers = np.random.default_rng(1)
    for i in range(count):
        yield {"text": f"number {i}", "input_ids": numbers.integers(0, 50_000, i % 11 and numbers.integers(1, 300))}


def documents(folder: Path) -> list[list[int]]:
    """Returns all documents, as Megatron's `IndexedDataset` reads them: a head, lengths, pointers, first sequences.

    The reader is written here from that layout; Megatron-LM itself is not used.
    """
    found = []
    for path in sorted(folder.glob("*.idx")):
        index, tokens = path.read_bytes(), path.with_suffix(".bin").read_bytes()
        magic, version, code, sequences, count = HEAD.unpack_from(index)
        assert (magic, version, count) == (b"MMIDIDX\0\0", 1, sequences + 1)
        lengths = np.frombuffer(index, "<i4", sequences, HEAD.size)
        pointers = np.frombuffer(index, "<i8", sequences, HEAD.size + 4 * sequences)
        firsts = np.frombuffer(index, "<i8", count, HEAD.size + 12 * sequences)
        assert len(index) == HEAD.size + 12 * sequences + 8 * count
        assert firsts.tolist() == list(range(count))
        found += [np.frombuffer(tokens, DTYPES[code], *at).tolist() for at in zip(lengths, pointers, strict=True)]
    return found


def files_of(folder: Path) -> dict[str, bytes]:
    """Returns the content of the files by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture
def expected() -> list[list[int]]:
    """Returns the tokens of 1,000 documents."""
    return [sample["input_ids"].tolist() for sample in made(1000)]


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the folder in which the engine has its files."""
    monkeypatch.setenv("STREAMER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "run"))
    return tmp_path


def test_what_a_program_makes_becomes_tokens(folders: Path, expected: list[list[int]]) -> None:
    """Tokens of a small vocabulary are packed in two bytes each; training reads them as documents and as windows.

    The digest is that of an index.
    """
    target = folders / "tokens"
    packed = streamer.pack(made(1000), target, output_format="tokens", vocab_size=50_257, shard_bytes="100kB")
    assert (packed.shards, packed.samples, packed.bytes) == (3, 1000, 2 * sum(map(len, expected)))
    assert documents(target) == expected
    assert main(["index", f"{target}/", "--out", f"{folders}/manifest"]) == 0
    assert Manifest.open(folders / "manifest").digest == packed.digest
    dataset = StreamingDataset(f"{target}/", shuffle=False)
    assert [sample["tokens"].tolist() for sample in cast("Iterable[dict[str, Any]]", dataset)] == expected
    dataset.close()
    windows = StreamingDataset(f"{target}/", format=Tokens(sequence_length=100), shuffle=False)
    first = np.concatenate([tokens for tokens in expected if tokens])
    assert [windows[i]["tokens"].tolist() for i in (0, 1)] == [first[:101].tolist(), first[100:201].tolist()]
    windows.close()
    before = files_of(target)
    assert streamer.pack(made(1000), target, output_format="tokens", vocab_size=50_257, shard_bytes="100kB") == packed
    assert files_of(target) == before


@pytest.mark.slow
def test_columns_and_lists_become_tokens(folders: Path, expected: list[list[int]]) -> None:
    """Token lists of Parquet, JSON lines and tokens are packed as tokens, with the same bytes by process and thread."""
    (folders / "source").mkdir()
    texts = [f"number {i}" for i in range(len(expected))]
    pq.write_table(pa.table({"input_ids": expected, "text": texts}), folders / "source/a.parquet")
    (folders / "lines").mkdir()
    (folders / "lines/a.jsonl").write_text("".join(f'{{"ids": {ids}, "text": "{len(ids)}"}}\n' for ids in expected))
    small: dict[str, Any] = {"output_format": "tokens", "shard_bytes": "100kB"}
    other = [
        "pack",
        f"{folders}/source",
        "--out",
        f"{folders}/other",
        "--output-format",
        "tokens",
        "--executor",
        "processes:1",
    ]
    assert main([*other, "--shard-bytes", "100kB"]) == 0
    with ThreadPoolExecutor(1) as here:
        small["executor"] = here
        packed = streamer.pack(folders / "source", folders / "one", **small)
        small["vocab_size"] = 50_000
        streamer.pack(folders / "lines", folders / "short", **small)
        streamer.pack(folders / "short", folders / "again", order="shuffle", transform=_with_end, **small)
        streamer.pack(folders / "lines", folders / "texts", transform=_tokenized, **small)
    assert packed.bytes == 4 * sum(map(len, expected))
    assert documents(folders / "one") == expected
    assert files_of(folders / "one") == files_of(folders / "other")
    assert documents(folders / "short") == expected
    assert documents(folders / "texts") == [[*str(len(ids)).encode()] for ids in expected]
    assert sorted(documents(folders / "again")) == sorted([*ids, 3] for ids in expected)


def _with_end(sample: dict[str, Any]) -> dict[str, Any]:
    return {"tokens": np.append(sample["tokens"], 3)}


def _tokenized(sample: dict[str, Any]) -> dict[str, Any]:
    return {"tokens": [*sample["text"].encode()]}


PROGRAM = """
import sys, streamer
from tests.e2e.test_pack_tokens import made
streamer.pack(made(20000), sys.argv[1], output_format="tokens", vocab_size=50257, shard_bytes="300kB")
"""


@pytest.mark.slow
def test_a_killed_pack_goes_on(folders: Path) -> None:
    """A killed pack as tokens goes on when it is run again, and its files are those of an undisturbed run."""
    target = folders / "killed"
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(target)])
    while len(list(target.glob("*.bin"))) < 3 and process.poll() is None:
        time.sleep(0.001)
    process.kill()
    assert process.wait() != 0
    assert not (target / ".streamer/root.json").exists()
    before = {path.name: path.stat().st_ino for path in target.iterdir() if path.is_file()}
    arguments: dict[str, Any] = {"output_format": "tokens", "vocab_size": 50_257, "shard_bytes": "300kB"}
    streamer.pack(made(20_000), target, **arguments)
    kept = [name for name, inode in before.items() if (target / name).stat().st_ino == inode]
    assert len(kept) >= len(before) - 4
    streamer.pack(made(20_000), folders / "undisturbed", **arguments)
    assert files_of(target) == files_of(folders / "undisturbed")
    assert list(target.rglob("*.spool")) == []


@pytest.mark.slow
def test_an_index_file_is_part_of_its_shard(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`streamer verify` names a lost or changed index file, and a pack writes its shard again and nothing else."""
    target, arguments = folders / "tokens", {"output_format": "tokens", "shard_bytes": "200kB"}
    packed = streamer.pack(made(1000), target, **arguments)  # type: ignore[arg-type]
    index, before = target / "shard-000001.idx", files_of(target)
    times, content = index.stat(), bytearray(index.read_bytes())
    content[-1] ^= 1  # a document: no sample is another one
    index.write_bytes(content)
    os.utime(index, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert main(["verify", str(target), "--executor", "processes:1"]) == 0
    assert main(["verify", str(target), "--every", "--executor", "processes:1"]) == 1
    assert "shard-000001.idx has CRC-32" in capsys.readouterr().err
    index.unlink()
    assert main(["verify", str(target)]) == 1
    assert "shard-000001.idx is gone" in capsys.readouterr().err
    inodes = {path.name: path.stat().st_ino for path in target.iterdir() if path.is_file()}
    assert streamer.pack(made(1000), target, **arguments).shards == packed.shards  # type: ignore[arg-type]
    assert files_of(target) == before
    assert [name for name, inode in inodes.items() if (target / name).stat().st_ino != inode] == ["shard-000001.bin"]
    assert main(["verify", str(target), "--every", "--executor", "processes:1"]) == 0


SHORT = {"ids": np.zeros(3, np.uint16)}


@pytest.mark.parametrize(
    ("samples", "options", "error", "message"),
    [
        pytest.param(
            [*[SHORT] * 70, {"ids": [1, -1]}],
            {},
            PackError,
            "sample 70 of the iterable: number 1 of field 'ids' is -1, tokens are 0 to 65535",
            id="negative",
        ),
        pytest.param(
            [*[SHORT] * 70, {"ids": [1, 65_536]}],
            {},
            PackError,
            "number 1 of field 'ids' is 65536, tokens are 0 to 65535",
            id="large for the dtype",
        ),
        pytest.param(
            [*[SHORT] * 70, {"ids": [1, 0.5]}],
            {},
            PackError,
            "sample 70 of the iterable: field 'ids' is not a list of integers",
            id="float",
        ),
        pytest.param(
            [*[SHORT] * 70, {"ids": [[1], [2, 3]]}], {}, PackError, "not a list of integers", id="list of lists"
        ),
        pytest.param([*[SHORT] * 70, {"other": [1]}], {}, PackError, "not a list of integers", id="another field"),
        pytest.param(
            [{"ids": [4, 5]}], {"vocab_size": 5}, PackError, "is 5, tokens are 0 to 4", id="large for the vocabulary"
        ),
        pytest.param(
            [{"text": "a", "n": 1}],
            {},
            PackError,
            r"no field is a list of integers .* which have text, n; .* a transform",
            id="no list",
        ),
        pytest.param(
            [{"ids": [1], "mask": [1]}],
            {},
            ConfigError,
            "ids and mask are lists of integers; name the one with the tokens",
            id="two lists",
        ),
        pytest.param(
            [{"ids": []}, {"ids": []}],
            {},
            PackError,
            "a shard would have no tokens: all of its 2 samples are empty",
            id="empty samples",
        ),
        pytest.param([], {}, PackError, "the iterable gives no samples", id="no samples"),
        pytest.param(
            [SHORT],
            {"output_format": "webdataset", "vocab_size": 5},
            ConfigError,
            r"vocab_size=\d with output_format='[tw].*': a number from 1",
            id="vocabulary of tars",
        ),
        pytest.param(
            [SHORT],
            {"vocab_size": 0},
            ConfigError,
            r"vocab_size=\d with output_format='[tw].*': a number from 1",
            id="empty vocabulary",
        ),
    ],
)
def test_what_is_no_tokens_is_named(
    samples: list[Mapping[str, Any]],
    options: Mapping[str, Any],
    error: type[Exception],
    message: str,
    folders: Path,
) -> None:
    """`pack` refuses values that are no tokens and names them, so that nothing is written that reads otherwise."""
    with pytest.raises(error, match=message):
        streamer.pack(samples, folders / "odd", **{"output_format": "tokens", **options})
    assert list(folders.rglob("*.spool")) == []
