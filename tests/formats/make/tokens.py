"""Makes the files of tests/formats/data/tokens with Megatron-LM's own writer, and what Megatron-LM reads of them.

PYTHONPATH=. python tests/formats/make/tokens.py [FOLDER] [DOCUMENTS]

megatron-core 0.16.1, torch. Files of llm.c and nanoGPT are written and read as their few lines of numpy do it.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from megatron.core.datasets import helpers
from megatron.core.datasets.gpt_dataset import GPTDataset
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

from tests.formats.summary import write_expected

ROOT = Path(__file__).parents[1] / "data" / "tokens"
LENGTH = 32


def write_megatron(folder: Path, documents: int, dtype: type[np.integer]) -> None:
    """Writes two files; documents have one sequence or two, some are empty."""
    drawn = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for name in ("a", "b"):
        builder = IndexedDatasetBuilder(str(folder / f"{name}.bin"), dtype=dtype)
        for number in range(documents // 2):
            for _ in range(1 + number % 2):
                tokens = drawn.integers(0, 50_000, 0 if number % 11 == 7 else int(drawn.integers(1, 120)))
                builder.add_item(torch.from_numpy(tokens.astype(np.int64)))
            builder.end_document()
        builder.finalize(str(folder / f"{name}.idx"))


def sequences(folder: Path) -> list[dict[str, object]]:
    """Returns what Megatron's `IndexedDataset` gives."""
    samples: list[dict[str, object]] = []
    for path in sorted(folder.glob("*.bin")):
        # What it gives is gone when it is.
        indexed = IndexedDataset(str(path.with_suffix("")))
        samples += [{"tokens": np.array(indexed[number])} for number in range(len(indexed))]
    return samples


def windows(folder: Path, length: int) -> list[dict[str, object]]:
    """Returns Megatron's own windows of documents that are not shuffled, as tokens of the dtype of the file."""
    samples: list[dict[str, object]] = []
    for path in sorted(folder.glob("*.bin")):
        indexed = IndexedDataset(str(path.with_suffix("")))
        sizes = indexed.sequence_lengths
        order = np.arange(len(sizes), dtype=np.int32)
        dataset = object.__new__(GPTDataset)
        dataset.dataset, dataset.document_index, dataset._pad_token_id = indexed, order, -1
        dataset.config = SimpleNamespace(sequence_length=length, add_extra_token_to_sequence=1)
        dataset.sample_index = helpers.build_sample_idx(sizes, order, length, 1, int(sizes.sum()))
        dataset.shuffle_index = np.arange(len(dataset.sample_index) - 1)
        for number in range(len(dataset.shuffle_index)):
            tokens, _ = dataset._query_document_sample_shuffle_indices(number)
            samples.append({"tokens": tokens.astype(indexed.index.dtype)})
    return samples


def write_llm_c(path: Path, tokens: np.ndarray, magic: int, version: int, dtype: str) -> None:
    """Writes a file as llm.c's dev/data/data_common.py does."""
    head = np.zeros(256, np.int32)
    head[:3] = magic, version, len(tokens)
    path.write_bytes(head.tobytes() + tokens.astype(dtype).tobytes())


def cut(tokens: np.ndarray, length: int) -> list[dict[str, object]]:
    """Cuts samples as nanoGPT's `get_batch` does, at every `length`th place."""
    return [{"tokens": tokens[i : i + 1 + length]} for i in range(0, len(tokens) - length, length)]


def main(root: Path, documents: int) -> None:
    shutil.rmtree(root, ignore_errors=True)
    for name, dtype in (("sequences", np.uint16), ("windows", np.uint16), ("wide", np.int32)):
        write_megatron(root / name, documents, dtype)
        write_expected(root / name, windows(root / name, LENGTH) if name != "sequences" else sequences(root / name))
    drawn = np.random.default_rng(1)
    for name, dtype in (("llmc", "<u2"), ("llmc3", "<u4"), ("plain", "<u2")):
        (root / name).mkdir()
        samples = []
        for number, count in enumerate((20 * documents, 5 * documents + 1)):
            tokens = drawn.integers(0, 50_000, count).astype(dtype)
            path = root / name / f"train_{number:06}.bin"
            if name == "plain":
                tokens.tofile(path)
            else:
                write_llm_c(path, tokens, *((20240520, 1) if name == "llmc" else (20240801, 7)), dtype)
            samples += cut(tokens, LENGTH)
        write_expected(root / name, samples)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT, int(sys.argv[2]) if len(sys.argv) > 2 else 40)
