"""A language model on packed tokens: fixed-length windows, in an exact order that a resumed run goes on with.

    python examples/llm_tokens.py
    python examples/llm_tokens.py --layout npy
    python examples/llm_tokens.py --url s3://bucket/tokens/ --window 2048 --workers 4

Tokens are raw uint16 in one long row, cut into samples of a few windows each: members `.bin` of tars, or a folder of
`.npy` files. A sample of several windows keeps tar headers and requests few; the model sees single windows. A window
has one token more than the model reads, the last one is only a target.
"""

from __future__ import annotations

import argparse
import io
import tarfile
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from streamer import StreamingDataLoader, StreamingDataset
from streamer.decode import ArrayDecoder

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


def make_data(folder: Path, layout: str, window: int, windows_per_sample: int) -> None:
    """Packs the row; the rest that fills no sample is left out."""
    folder.mkdir(parents=True)
    samples = make_tokens(512 * (window + 1)).reshape(-1, windows_per_sample * (window + 1))
    if layout == "npy":
        for number, tokens in enumerate(samples):
            np.save(folder / f"{number:06}.npy", tokens)
        return
    for shard, part in enumerate(np.array_split(samples, 4)):
        with tarfile.open(folder / f"tokens-{shard:03}.tar", "w") as tar:
            for number, tokens in enumerate(part):
                raw = tokens.astype("<u2").tobytes()
                member = tarfile.TarInfo(f"{shard:03}-{number:06}.bin")
                member.size = len(raw)
                tar.addfile(member, io.BytesIO(raw))


def windows(sample: Mapping[str, object], *, window: int) -> npt.NDArray[np.int32]:
    """The windows of a sample, (windows, window + 1). torch has no arithmetic on uint16."""
    tokens = sample["bin"] if "bin" in sample else sample["npy"]
    assert isinstance(tokens, np.ndarray)
    return tokens.reshape(-1, window + 1).astype(np.int32)


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
    dataset = StreamingDataset(
        url,
        cache_dir=cache,
        decode={"bin": ArrayDecoder("<u2")},
        transform=partial(windows, window=arguments.window),
    )
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with StreamingDataLoader(dataset, arguments.batch_size, arguments.workers, drop_last=True) as loader:
        for epoch in range(arguments.epochs):
            losses, tokens = [], 0
            for batch in loader:
                rows = batch.flatten(0, 1).long()
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
    parser.add_argument("--url", help="tars or folder of packed tokens; default: made here")
    parser.add_argument("--layout", choices=("tars", "npy"), default="tars", help="of the data made here")
    parser.add_argument("--window", type=int, default=128, help="tokens that the model reads (default: 128)")
    parser.add_argument("--batch-size", type=int, default=2, help="samples of 8 windows (default: 2)")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        url = arguments.url
        if url is None:
            url = f"{scratch}/tokens/"
            make_data(Path(url), arguments.layout, arguments.window, windows_per_sample=8)
        train(url, Path(scratch) / "cache", arguments)


if __name__ == "__main__":
    main()
