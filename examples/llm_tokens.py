"""A language model on files of tokens as they are: windows in an exact order that a resumed run goes on with.

    python examples/llm_tokens.py
    python examples/llm_tokens.py --layout plain
    python examples/llm_tokens.py --url s3://bucket/tokens/ --window 2048 --batch-size 16 --workers 4

The data are what other programs train on: `.bin` with `.idx` of Megatron-LM and NeMo, or `.bin` of nanoGPT, one row of
uint16. A window has one token more than the model reads; the next one begins with that token.
"""

from __future__ import annotations

import argparse
import struct
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from streamer import StreamingDataLoader, StreamingDataset
from streamer.formats import Tokens

VOCABULARY = 64


# ---------------------------------------------------------------- data


def make_tokens(count: int) -> npt.NDArray[np.uint16]:
    """A language of 64 words in which each word has three that may follow it: 1.1 nats per token."""
    rng = np.random.default_rng(0)
    followers = rng.integers(0, VOCABULARY, (VOCABULARY, 3))
    choices = rng.integers(0, 3, count)
    tokens, word = np.empty(count, np.uint16), 0
    for place, choice in enumerate(choices.tolist()):
        tokens[place] = word = int(followers[word, choice])
    return tokens


def make_data(folder: Path, layout: str, count: int) -> None:
    """Writes two files; of Megatron's, the index says that documents have 1,000 tokens."""
    folder.mkdir(parents=True)
    for number, tokens in enumerate(np.array_split(make_tokens(count), 2)):
        tokens.tofile(folder / f"train-{number}.bin")
        if layout == "megatron":
            starts = np.arange(0, len(tokens), 1000)
            lengths = np.diff(np.append(starts, len(tokens))).astype(np.int32)
            head = struct.pack("<9sQBQQ", b"MMIDIDX", 1, 8, len(starts), len(starts) + 1)
            documents = np.arange(len(starts) + 1)
            parts = [head, lengths.tobytes(), (2 * starts).tobytes(), documents.tobytes()]
            (folder / f"train-{number}.idx").write_bytes(b"".join(parts))


# ---------------------------------------------------------------- model


class Model(nn.Module):
    """One block of attention, enough to learn which word follows which."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.block = nn.TransformerEncoderLayer(
            width, nhead=4, dim_feedforward=2 * width, batch_first=True, dropout=0.0
        )
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.block(self.embedding(tokens), src_mask=mask, is_causal=True))


def train(url: str, cache: Path, arguments: argparse.Namespace) -> None:
    torch.manual_seed(0)
    dtype = "<u2" if arguments.layout == "plain" else ""
    dataset = StreamingDataset(url, cache_dir=cache, format=Tokens(sequence_length=arguments.window, dtype=dtype))
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with StreamingDataLoader(dataset, arguments.batch_size, arguments.workers, drop_last=True) as loader:
        for epoch in range(arguments.epochs):
            losses, tokens = [], 0
            for batch in loader:
                # torch has no arithmetic on uint16, which is what is read and moved.
                rows = batch["tokens"].long()
                logits = model(rows[:, :-1])
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                tokens += rows[:, 1:].numel()
            print(f"epoch {epoch}: {tokens:,} tokens, loss {losses[0]:.2f} -> {losses[-1]:.2f}")
        print(f"the run goes on from {loader.state_dict()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="folder of tokens; default: made here")
    parser.add_argument(
        "--layout",
        choices=("megatron", "plain"),
        default="megatron",
        help="of the data; plain: uint16 and nothing else",
    )
    parser.add_argument("--window", type=int, default=128, help="tokens that the model reads (default: 128)")
    parser.add_argument("--batch-size", type=int, default=16, help="windows (default: 16)")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        url = arguments.url
        if url is None:
            url = f"{scratch}/tokens/"
            make_data(Path(url), arguments.layout, 512 * (arguments.window + 1))
        train(url, Path(scratch) / "cache", arguments)


if __name__ == "__main__":
    main()
