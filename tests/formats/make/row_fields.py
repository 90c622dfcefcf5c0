"""Makes what other packers give beside the tokens of a row, on the same documents: python row_fields.py PEER FILE

PEER is grain (0.2.18), torchtitan (0.3.0, with datasets 4.7.0 and tyro), or megatron (megatron-core 0.16.1); torch
for the last two. The token of document k at place i is 100 k + i + 1, so that a row tells its documents; with
megatron a document ends with the token 0. A row has "tokens", "position_ids", with grain and megatron "document_ids",
with torchtitan "labels".
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

LENGTH = 32
# One that fills a row, some of which several fit, one token, and two longer than a row.
SIZES = [5, 9, 32, 17, 20, 1, 11, 30, 7, 7, 3, 26, 70, 12, 45, 8]

Row = dict[str, list[int]]


def documents(longest: int) -> list[list[int]]:
    return [[100 * k + i + 1 for i in range(size)] for k, size in enumerate(SIZES, 1) if size <= longest]


def grain() -> Iterator[Row]:
    """Packs by first fit, and documents one after the other."""
    import grain as library
    import numpy as np
    from grain import experimental

    for kind, longest in (
        (experimental.FirstFitPackIterDataset, LENGTH),
        (experimental.ConcatThenSplitIterDataset, 99),
    ):
        elements = [{"tokens": np.array(one)} for one in documents(longest)]
        source = library.MapDataset.source(elements).to_iter_dataset()
        options = {"num_packing_bins": 3} if longest == LENGTH else {}
        for row in kind(source, length_struct={"tokens": LENGTH}, **options):
            names = {"tokens": "tokens", "position_ids": "tokens_positions", "document_ids": "tokens_segment_ids"}
            yield {name: row[theirs].tolist() for name, theirs in names.items()}


def torchtitan() -> Iterator[Row]:
    """Packs greedily as `ChatDataset`, and in windows as `HuggingFaceTextDataset`, whose buffer keeps the rest."""
    from torchtitan.hf_datasets.text_datasets import ChatDataset, HuggingFaceTextDataset

    class Chats(ChatDataset):
        """torchtitan's own packing of chats, with made-up documents in place of a tokenizer and a dataset."""

        def __init__(self) -> None:
            self._eos_id, self.seq_len, self.infinite, self._sample_idx, self._dataset_id = 0, LENGTH, False, 0, ""
            self._inputs_buffer, self._labels_buffer, self._positions_buffer = [], [], []
            self._pending_input_ids, self._pending_label_ids = [], []

        def _get_data_iter(self) -> Iterator[list[int]]:
            return iter(documents(LENGTH))

        def _tokenize_sample(self, sample: list[int]) -> tuple[list[int], list[int]]:
            return sample, [*sample[1:], 0]

    class Texts(HuggingFaceTextDataset):
        """torchtitan's own windows of texts, with made-up documents in place of a tokenizer and a dataset."""

        def __init__(self) -> None:
            self.seq_len, self.infinite, self._sample_idx, self.dataset_name = LENGTH, False, 0, ""
            self._inputs_buffer, self._labels_buffer, self._positions_buffer = [], [], []
            self._text_processor, self._tokenizer = list, self

        def _get_data_iter(self) -> Iterator[list[int]]:
            return iter(documents(99))

        def encode(self, text: list[int], add_bos: bool, add_eos: bool) -> list[int]:
            return [*text, 0]

    for rows in (Chats(), Texts()):
        for inputs, labels in rows:
            found = {"tokens": inputs["input"], "position_ids": inputs["positions"], "labels": labels}
            yield {name: values.tolist() for name, values in found.items()}


def megatron() -> Iterator[Row]:
    """Makes the masks and positions of `GPTDataset` with reset_position_ids and reset_attention_mask."""
    import torch
    from megatron.core.datasets.gpt_dataset import _get_ltor_masks_and_position_ids as positions_of

    text = torch.tensor([token for one in documents(99) for token in [*one, 0]])
    for tokens in text[: len(text) // LENGTH * LENGTH].split(LENGTH):
        hidden, _, positions = positions_of(tokens, 0, True, True, False, True)
        # The first token that a token sees is that of its document.
        first = (~hidden[0]).int().argmax(dim=1)
        numbers = first.unique(return_inverse=True)[1] + 1
        yield {"tokens": tokens.tolist(), "position_ids": positions.tolist(), "document_ids": numbers.tolist()}


if __name__ == "__main__":
    peer, file = sys.argv[1:]
    found = list({"grain": grain, "torchtitan": torchtitan, "megatron": megatron}[peer]())
    Path(file).write_text("[\n" + ",\n".join(json.dumps(row) for row in found) + "\n]\n")
