"""Tests that a model with torch's flex attention reads a document in a packed row as it reads it alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from streamer import Packing, StreamingDataLoader
from tests.documents import documents, lengths, write_megatron

# torch has it from 2.5 on.
flex = pytest.importorskip("torch.nn.attention.flex_attention")
ROW, VOCABULARY, WIDTH, HEADS = 64, 1 << 16, 32, 2


class Model(nn.Module):
    """Stands for a language model: two layers of causal attention, with learned positions and random weights."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(ROW, WIDTH)
        self.mixed = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))
        self.ahead = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.logits = nn.Linear(WIDTH, 100)

    def forward(self, tokens: Tensor, positions: Tensor, ids: Tensor) -> Tensor:
        """Returns logits (B, length, 100) of tokens, positions and numbers of documents (B, length)."""
        state = self.tokens(tokens) + self.positions(positions)
        batch, length = ids.shape
        mask = flex.create_block_mask(
            lambda b, h, q, k: (q >= k) & (ids[b, q] == ids[b, k]), batch, None, length, length, device="cpu"
        )
        for mixed, ahead in zip(self.mixed, self.ahead, strict=True):
            heads = mixed(state).view(batch, length, 3 * HEADS, WIDTH // HEADS).transpose(1, 2)
            found = flex.flex_attention(*heads.chunk(3, dim=1), block_mask=mask)
            state = state + ahead(torch.relu(found.transpose(1, 2).reshape(batch, length, WIDTH)))
        return self.logits(state)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
def test_logits_in_a_row_are_those_of_the_document_alone(make_dataset, tmp_path):
    """The logits of each document in a packed row are those of the document alone, to 1e-5."""
    url = write_megatron(tmp_path, documents(lengths(60, ROW)))
    torch.manual_seed(0)
    model, compared = Model().eval(), 0
    with (
        StreamingDataLoader(make_dataset(url, format="tokens", packing=Packing(ROW)), 4, report_every=None) as loader,
        torch.no_grad(),
    ):
        for _, batch in zip(range(2), loader, strict=False):
            tokens, positions, ids = (
                torch.as_tensor(np.asarray(batch[name]).astype(np.int64))
                for name in ("tokens", "position_ids", "document_ids")
            )
            packed = model(tokens, positions, ids)
            for row, numbers in enumerate(ids):
                for number in range(1, int(numbers.max()) + 1):
                    own = numbers == number
                    alone = model(
                        tokens[row, own][None], torch.arange(int(own.sum()))[None], torch.ones(1, int(own.sum()))
                    )
                    assert torch.allclose(packed[row, own], alone[0], rtol=0, atol=1e-5)
                    compared += 1
    assert compared > 20
