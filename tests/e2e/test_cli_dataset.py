"""`streamer warm | show | explain | measure` as processes, on real folders."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.documents import documents, lengths, write_megatron

COMMAND = [sys.executable, "-m", "streamer"]


@pytest.fixture
def environment(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Returns environment variables with a cache and a runtime folder of this test's own."""
    folder = tmp_path_factory.mktemp("s")
    own = {"STREAMER_CACHE_DIR": str(folder / "cache"), "STREAMER_RUNTIME_DIR": str(folder / "run")}
    return {**{name: value for name, value in os.environ.items() if not name.startswith("STREAMER_")}, **own}


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    """Returns a folder of 64 arrays of 40 kB in two classes: 2.6 MB, about ten chunks."""
    for i in range(64):
        label = tmp_path / "arrays" / ("a", "b")[i % 2]
        label.mkdir(parents=True, exist_ok=True)
        np.save(label / f"{i:02}.npy", np.full(10_000, i, np.float32))
    return tmp_path / "arrays"


def _run(environment: Mapping[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, env=environment, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_warm_fills_once_and_exports_a_layer(environment: Mapping[str, str], arrays: Path, tmp_path: Path) -> None:
    """`streamer warm` fetches each chunk once and exports a whole copy; explain and show describe the dataset."""
    first = _run(environment, "warm", f"{arrays}/", "--rate-limit", "20MB/s")
    chunks = int(first.split()[0])
    assert first.startswith(f"{chunks} of {chunks} chunks are local; 2.6 MB fetched, ")
    second = _run(environment, "warm", f"{arrays}/", "--export", f"{tmp_path}/layer")
    assert second.startswith(f"{chunks} of {chunks} chunks are local; 0 B fetched\n")
    check = _run(environment, "cache", "check", f"{tmp_path}/layer")
    assert check.startswith(f"{chunks} chunks, 2.6 MB: 0 damaged")
    explained = _run(environment, "explain", f"{arrays}/", "--global-batch-size", "16", "--nodes", "2")
    assert "mixing   variance of a batch's mean at most" in explained
    shown = _run(environment, "show", f"{arrays}/", "--key", "b/17.npy")
    assert shown.splitlines()[1].startswith(f"  in {arrays}/b/17.npy, 40,128 bytes from 0 on, chunk ")
    assert shown.splitlines()[2] == "  npy    float32 10000, 40.0 kB: 17 to 17, mean 17"
    assert shown.splitlines()[3] == "  label  int 1 (b)"


@pytest.mark.slow
def test_an_export_beyond_the_cache_says_what_is_local(
    environment: Mapping[str, str], arrays: Path, tmp_path: Path
) -> None:
    """An export of more than the cache holds copies all chunks, and the summary counts those that the cache has kept.
    The manifests are copied once, before the first chunk.

    Regression: it said that all chunks were local, and copied the manifests again after each slice.
    """
    layer = tmp_path / "layer"
    lines = _run(environment, "warm", f"{arrays}/", "--cache-bytes", "2400kB", "--export", f"{layer}").splitlines()
    found = re.match(r"(\d+) of (\d+) chunks are local; ", lines[0])
    assert found is not None
    local, chunks = map(int, found.groups())
    assert 0 < local < chunks
    assert lines[1].startswith(f"{chunks - local} chunks have left the cache after their export; ")
    changed = {
        kind: sorted(path.stat().st_ctime_ns for path in (layer / kind).rglob("*") if path.is_file())
        for kind in ("manifests", "chunks")
    }
    assert changed["manifests"][-1] < changed["chunks"][0]
    assert _run(environment, "cache", "check", f"{layer}").startswith(f"{chunks} chunks, 2.6 MB: 0 damaged")
    kept = _run(environment, "cache", "stat", environment["STREAMER_CACHE_DIR"])
    assert f"{local} chunks" in kept, kept


@pytest.mark.slow
def test_explain_plans_rows(environment: Mapping[str, str], tmp_path: Path) -> None:
    """`streamer explain --packing` describes rows planned by the format's tokens or a guess, and keeps their table."""
    write_megatron(tmp_path / "tokens", documents(lengths(800, 64)))
    command = ("explain", f"{tmp_path}/tokens/", "--format", "tokens", "--packing", "64", "--global-batch-size", "8")
    explained = _run(environment, *command).splitlines()
    planned = next(line for line in explained if line.startswith("rows "))
    assert re.match(r"rows     [\d,]+ rows of 64 tokens in 1 set of up to 2 chunks: ", planned)
    assert explained[-1].startswith("         2 ranks of 4 rows: 1.")
    assert list(Path(environment["STREAMER_CACHE_DIR"]).rglob("*.rows.arrows"))
    guessed = next(line for line in _run(environment, *command, "--lengths", "2").splitlines() if "rows of 64" in line)
    assert " rows of 64 tokens in 1 set of up to " in guessed
    assert "full" in guessed.partition("about ")[2]
    # A batch with more rows than there are is described as well.
    assert _run(environment, *command[:-1], "4096").splitlines()[-2].startswith("sets ")


JOB = """
import json, sys

def count(sample):
    print(sample["text"], file=open("read.txt", "a"))
    return len(sample["text"].split())
"""


def _texts(folder: Path, number: int, samples: int) -> None:
    folder.mkdir(exist_ok=True)
    lines = (json.dumps({"text": f"{number}-{at} " + "word " * (at % 7)}) for at in range(samples))
    (folder / f"{number}.jsonl").write_text("\n".join(lines))


@pytest.mark.slow
@pytest.mark.parametrize("executor", [(), ("--executor", "processes:2")])
def test_measure_counts_tokens(
    environment: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executor: tuple[str, ...]
) -> None:
    """`streamer measure` counts tokens by a function of a module in this folder, later only those of new objects.

    `explain --packing` plans rows by the file that it writes.
    """
    monkeypatch.chdir(tmp_path)
    Path("job.py").write_text(JOB)
    command = ("measure", "texts/", "--function", "job:count", "--out", "lengths.npy", *executor)
    for number, samples in ((0, 50), (1, 20)):
        _texts(Path("texts"), number, samples)
        said = _run(environment, *command).splitlines()[-1]
        # Those of the other file are not read again.
        read = {line.split()[0] for line in Path("read.txt").read_text().splitlines()}
        assert read == {f"{number}-{at}" for at in range(samples)}
        Path("read.txt").unlink()
    expected = [1 + at % 7 for samples in (50, 20) for at in range(samples)]
    assert np.load("lengths.npy").tolist() == expected
    assert said == f"tokens: {sum(expected)} of 70 samples, median 4, max 7: lengths.npy"
    planned = _run(environment, "explain", "texts/", "--packing", "64", "--lengths", "lengths.npy")
    assert f": {sum(expected)} tokens of 70 documents, " in planned


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        ("explain", ("--packing", "64", "--lengths", "nan"), "argument --lengths: 'nan' is not a number from 0 to "),
        (
            "measure",
            ("--field", "words", "--out", "c.npy"),
            "count='words' is not a field of the sample; its fields are __key__, text",
        ),
    ],
)
def test_what_is_counted_must_be_there(
    environment: Mapping[str, str], tmp_path: Path, command: str, options: tuple[str, ...], message: str
) -> None:
    """Commands whose --lengths is no number, or whose --field no sample has, end with code 2 and name the mistake."""
    _texts(tmp_path / "texts", 0, 3)
    words = [*COMMAND, command, f"{tmp_path}/texts/0.jsonl", *options]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.slow
def test_warm_leaves_out_what_has_no_room(environment: Mapping[str, str], arrays: Path) -> None:
    """`streamer warm` with a cache smaller than the data keeps as many chunks as fit, and says how many do not."""
    out = _run(environment, "warm", f"{arrays}/", "--cache-bytes", "2.4MB")
    local, total = int(out.split()[0]), int(out.split()[2])
    assert 0 < local < total
    assert f"{total - local} chunks have no room" in out
    assert _run(environment, "cache", "stat").splitlines()[0].split()[1] == str(local)
