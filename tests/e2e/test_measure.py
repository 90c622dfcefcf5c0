"""measure_lengths in several real processes, and of datasets whose annotations leave samples out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from streamer import Annotations, Packing, Skip, StreamingDataLoader, StreamingDataset, measure_lengths
from streamer.errors import DecodeError

SAMPLES = 60


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory, standing_engine: Callable[[Path], None]) -> Path:
    """Returns 60 files, the n-th of n + 1 letters, and rows of a table for all but the first four."""
    root = tmp_path_factory.mktemp("measure")
    (root / "texts").mkdir()
    for number in range(SAMPLES):
        (root / "texts" / f"{number:03}.txt").write_text("x" * (number + 1))
    rows = [f"{number:03}.txt,{number}" for number in range(4, SAMPLES)]
    (root / "table.csv").write_text("\n".join(["file_name,tag", *rows]))
    standing_engine(root / "texts")
    return root


def tokenize(sample: dict) -> dict:
    if sample["txt"] == "x" * 8:
        raise ValueError("no good")
    return {"input_ids": np.frombuffer(sample["txt"].encode(), np.uint8).astype(np.int64)}


@pytest.mark.parametrize("on_error", ["skip", "raise"])
@pytest.mark.parametrize("options", [{"num_workers": 2}, {"executor": "processes:2"}])
def test_processes_measure_what_one_does(
    texts: Path, tmp_path: Path, closing: Callable[..., StreamingDataset], on_error: str, options: dict
) -> None:
    """measure_lengths gives the same numbers or the same error on several processes, and -1 for a skipped sample."""
    dataset = closing(StreamingDataset(texts / "texts", transform=tokenize, on_error=on_error))
    if on_error == "raise":
        with pytest.raises(ValueError, match="no good"):
            measure_lengths(dataset, "input_ids", path=tmp_path / "a.npy", **options)
        return
    lengths = measure_lengths(dataset, "input_ids", path=tmp_path / "a.npy", **options)
    plain = closing(StreamingDataset(texts / "texts"))
    expected = [length if length != 8 else -1 for length in (len(plain[number]["txt"]) for number in range(SAMPLES))]
    assert lengths.tolist() == expected
    assert measure_lengths(dataset, "input_ids", path=tmp_path / "b.npy").tolist() == expected


def test_samples_without_annotations_that_are_dropped_are_in_no_row(
    texts: Path, tmp_path: Path, closing: Callable[..., StreamingDataset]
) -> None:
    """A file of lengths has -1 for samples that annotations drop, and packing with it puts them in no row."""
    annotations = Annotations(str(texts / "table.csv"), missing="drop")
    path = tmp_path / "lengths.npy"
    plain = closing(StreamingDataset(texts / "texts", annotations=annotations))
    assert len(plain) == SAMPLES - 4
    lengths = measure_lengths(plain, "txt", path=path)
    assert sorted(lengths.tolist()) == [-1] * 4 + list(range(5, SAMPLES + 1))
    packed = closing(
        StreamingDataset(
            texts / "texts",
            annotations=annotations,
            transform=lambda sample: {"input_ids": np.full(len(sample["txt"]), sample["tag"])},
            packing=Packing(64, lengths=path),
        )
    )
    with StreamingDataLoader(packed, 1, report_every=None) as loader:
        tags = {tag for batch in loader for tag in np.unique(np.asarray(batch["input_ids"])).tolist()}
    assert tags - {0} == set(range(4, SAMPLES))


def test_a_budget_counts_over_all_processes(
    texts: Path, tmp_path: Path, closing: Callable[..., StreamingDataset]
) -> None:
    """A budget of skips counts over all processes of measure_lengths, although none of them spends it alone."""
    dataset = closing(StreamingDataset(texts / "texts", transform=lambda sample: 1 // 0, on_error=Skip(budget=50)))
    with pytest.raises(DecodeError, match=r"Skip\(budget=50\) is spent"):
        measure_lengths(dataset, lambda sample: 1, path=tmp_path / "a.npy", num_workers=2)
