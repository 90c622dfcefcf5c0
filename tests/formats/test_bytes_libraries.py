"""Larger files that LMDB, Megatron-LM, pyarrow, polars, datasets and zipfile have just written, and packers' rows."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import streamer
from streamer.formats.base import Format
from streamer.formats.zip import Zip
from streamer.tables.arrow_ipc.format import ArrowIPC
from streamer.tables.lmdb import LMDB
from streamer.tables.tokens.format import Tokens
from tests.e2e.test_pack_tokens import files_of, made
from tests.formats.cases import DATA, MemoryStore, built, read_case
from tests.formats.contract import samples_of
from tests.formats.library_environment import library_python, make, python_with_only

pytestmark = [pytest.mark.formats, pytest.mark.timeout(3000)]

WINDOWS = Tokens(sequence_length=32)


@pytest.mark.parametrize(
    ("script", "python", "count", "formats", "raw"),
    [
        (
            "lmdb_entries.py",
            lambda: library_python("lmdb==1.7.5"),
            10_000,
            dict.fromkeys(("entries", "deep", "file", "numbers"), LMDB()),
            ["value"],
        ),
        (
            "tokens.py",
            lambda: library_python("megatron-core==0.16.1"),
            4000,
            {
                **dict.fromkeys(("windows", "wide", "llmc", "llmc3"), WINDOWS),
                "sequences": Tokens(),
                "plain": Tokens(sequence_length=32, dtype="<u2"),
            },
            [],
        ),
        (
            "arrow_ipc.py",
            lambda: python_with_only("polars==2.1.0", "datasets==5.2.0", "pillow"),
            2000,
            dict.fromkeys(("stream", "file", "feather", "huggingface"), ArrowIPC()),
            ["picture", "image"],
        ),
        (
            "zip_archives.py",
            lambda: Path(sys.executable),
            5000,
            dict.fromkeys(("stored", "deflated", "wide", "streamed", "streamed_stored"), Zip()),
            [],
        ),
    ],
    ids=["lmdb", "tokens", "arrow", "zip"],
)
def test_what_the_libraries_write(
    script: str, python: Callable[[], Path], count: int, formats: dict[str, Format], raw: list[str], tmp_path: Path
):
    """Files of LMDB, tokens, Arrow and zip deliver each sample and field as their libraries read them."""
    make(python(), script, tmp_path / "data", count)
    for name, chosen in formats.items():
        case = read_case(chosen, str(tmp_path / "data" / name), raw=raw)
        assert len(case.samples) >= count // 5
        assert samples_of(case) == list(case.samples)
        manifest = asyncio.run(built(chosen, MemoryStore(case.objects, seed=1), tmp_path / name, 64 << 10))
        assert manifest.samples == len(case.samples)


@pytest.mark.parametrize("vocabulary", [50_257, None])
def test_megatron_reads_packed_tokens(vocabulary: int | None, tmp_path: Path):
    """Megatron-LM reads packed tokens of two and four bytes, and writes files of the same bytes."""
    packed = streamer.pack(
        made(10_000), tmp_path / "packed", output_format="tokens", vocab_size=vocabulary, shard_bytes="1MB"
    )
    make(library_python("megatron-core==0.16.1"), "packed_tokens.py", tmp_path / "packed", tmp_path / "again")
    assert files_of(tmp_path / "again") == files_of(tmp_path / "packed")
    assert len(files_of(tmp_path / "again")) == 2 * packed.shards


@pytest.mark.parametrize(
    ("peer", "python"),
    [
        ("grain", lambda: python_with_only("grain==0.2.18")),
        ("megatron", lambda: library_python("megatron-core==0.16.1")),
    ],
)
def test_rows_of_other_packers(peer: str, python: Callable[[], Path], tmp_path: Path):
    """The stored rows of grain and Megatron-LM are those that these packages make now.

    Rows of documents are compared with them (tests/unit/batches/rows/test_assemble.py).
    """
    make(python(), "row_fields.py", peer, tmp_path / "rows.json")
    assert (tmp_path / "rows.json").read_text() == (DATA / "rows" / f"{peer}.json").read_text()
