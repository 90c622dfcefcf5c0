"""Fine-tuning on chats of any length: packed into rows, with a loss that equals that of the chats one by one.

    python examples/packed_sft.py
    python examples/packed_sft.py --length 4096 --batch-size 8 --workers 4
    python examples/packed_sft.py --url s3://bucket/chats/ --costs chats.npy

A chat is a line of JSON; the transform makes tokens of it. How many, nobody knows before, so `measure_lengths` counts
them once; after that the rows of every epoch are planned before the first byte is read. Attention does not look from
one chat into another: `document_ids` says where they end, `position_ids` begins anew in each.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

from streamer import Packing, StreamingDataLoader, StreamingDataset, measure_lengths

IGNORED = -100
# Bytes, and what begins the turns of a user and of an assistant, and ends a chat.
USER, ASSISTANT, END, VOCABULARY = 256, 257, 258, 259


def make_chats(folder: Path, count: int) -> None:
    """Questions about sums, with answers that spell them out; 30 to 400 bytes."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(count):
        numbers = rng.integers(0, 10, int(rng.integers(2, 40))).tolist()
        question, answer = " + ".join(map(str, numbers)), f"{sum(numbers)}, because " + ", ".join(map(str, numbers))
        chat = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        lines.append(json.dumps({"messages": chat}))
    for number, part in enumerate(np.array_split(np.array(lines), 4)):
        (folder / f"{number}.jsonl").write_text("\n".join(part) + "\n")


def tokenize(sample: dict[str, object]) -> dict[str, object]:
    """Tokens, and as labels those of the assistant; a model of Hugging Face shifts them itself."""
    tokens: list[int] = []
    labels: list[int] = []
    for turn in sample["messages"]:
        ours = turn["role"] == "assistant"
        text = [ASSISTANT if ours else USER, *turn["content"].encode(), *([END] if ours else [])]
        tokens += text
        labels += text if ours else [IGNORED] * len(text)
    return {"input_ids": np.array(tokens), "labels": np.array(labels)}


class Model(nn.Module):
    """A small causal language model: attention inside of documents, positions that begin anew in each."""

    def __init__(self, length: int, width: int = 64, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.queries = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.outputs = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.inner = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(layers)
        )
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, document_ids: torch.Tensor) -> torch.Tensor:
        rows, length = input_ids.shape
        # On a GPU: flex_attention with this rule as its mask_mod, or a varlen kernel with cu_seqlens and max_seqlen.
        same = document_ids[:, :, None] == document_ids[:, None, :]
        mask = (same & torch.ones(length, length, dtype=torch.bool).tril())[:, None]
        x = self.tokens(input_ids) + self.positions(position_ids)
        for layer, (query, output, inner) in enumerate(zip(self.queries, self.outputs, self.inner, strict=True)):
            parts = query(self.norms[2 * layer](x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            attended = nn.functional.scaled_dot_product_attention(*parts, attn_mask=mask)
            x = x + output(attended.transpose(1, 2).reshape(rows, length, -1))
            x = x + inner(self.norms[2 * layer + 1](x))
        return self.head(x)


def loss_of(model: Model, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, int]:
    """Sum of the losses of all labels, and their number: in logits[i] and labels[i + 1], as Hugging Face has it."""
    logits = model(batch["input_ids"], batch["position_ids"], batch["document_ids"])[:, :-1]
    labels = batch["labels"][:, 1:]
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")
    return loss, int((labels != IGNORED).sum())


def alone(batch: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """The chats of a batch, each as a batch of its own."""
    found = []
    for row, numbers in enumerate(batch["document_ids"]):
        for number in range(1, int(numbers.max()) + 1):
            places = numbers == number
            names = ("input_ids", "labels", "position_ids", "document_ids")
            found.append({name: batch[name][row, places][None] for name in names})
    return found


def train(dataset: StreamingDataset, arguments: argparse.Namespace) -> None:
    torch.manual_seed(0)
    model = Model(arguments.length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with StreamingDataLoader(dataset, arguments.batch_size, arguments.workers) as loader:
        for epoch in range(arguments.epochs):
            losses, chats, tokens, places, apart = [], 0, 0, 0, 0.0
            for step, batch in enumerate(loader):
                total, labels = loss_of(model, batch)
                if step < 3:
                    with torch.no_grad():
                        one_by_one = sum(float(loss_of(model, chat)[0]) for chat in alone(batch))
                    apart = max(apart, abs(float(total.detach()) - one_by_one) / one_by_one)
                loss = total / labels
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                chats += int(batch["document_ids"].max(1).values.sum())
                tokens += int((batch["document_ids"] > 0).sum())
                places += batch["document_ids"].numel()
            print(
                f"epoch {epoch}: {chats:,} chats, {1 - tokens / places:.2%} padding, loss {losses[0]:.2f} -> "
                f"{losses[-1]:.2f}, packed and one by one {apart:.0e} apart"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="folder of chats as JSON lines; default: made here")
    parser.add_argument("--costs", type=Path, help="file of the numbers of tokens; default: counted here")
    parser.add_argument("--length", type=int, default=512, help="tokens of a row (default: 512)")
    parser.add_argument("--batch-size", type=int, default=4, help="rows (default: 4)")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        url = arguments.url or f"{scratch}/chats/"
        if arguments.url is None:
            make_chats(Path(url), 400)
        costs, cache = arguments.costs or Path(scratch) / "costs.npy", Path(scratch) / "cache"
        if not costs.exists():
            chats = StreamingDataset(url, cache_dir=cache, transform=tokenize)
            measure_lengths(chats, "input_ids", path=costs, num_workers=arguments.workers)
            chats.close()
        # A chat that is longer than a row would be cut without its beginning: leave it out.
        packing = Packing(arguments.length, lengths=str(costs), overflow="drop")
        dataset = StreamingDataset(url, cache_dir=cache, transform=tokenize, packing=packing)
        train(dataset, arguments)
        dataset.close()


if __name__ == "__main__":
    main()
