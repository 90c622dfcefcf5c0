"""Reads packed tokens with Megatron-LM, and writes them with its own writer: python packed_tokens.py PACKED AGAIN

megatron-core 0.16.1, torch.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

if __name__ == "__main__":
    packed, again = map(Path, sys.argv[1:])
    again.mkdir()
    for path in sorted(packed.glob("*.bin")):
        indexed = IndexedDataset(str(path.with_suffix("")))
        builder = IndexedDatasetBuilder(str(again / path.name), dtype=indexed.index.dtype)
        for number in range(len(indexed)):
            builder.add_item(torch.from_numpy(indexed[number].astype("int64")))
            builder.end_document()
        builder.finalize(str(again / path.with_suffix(".idx").name))
