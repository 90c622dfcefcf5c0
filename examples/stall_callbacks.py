"""The stall report in TensorBoard or Weights & Biases, beside the loss.

    python examples/stall_callbacks.py                          prints what the others get
    python examples/stall_callbacks.py --to tensorboard         pip install tensorboard; then: tensorboard --logdir runs
    WANDB_MODE=offline python examples/stall_callbacks.py --to wandb        pip install wandb

Copy the function that you need: it is the `on_report=` of a StreamingDataLoader. Every 30 seconds, or as often as
`report_every=` says, it gets the share of the time that training waited for data, the causes, the bottleneck
and what to do about it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from streamer import StreamingDataLoader, StreamingDataset
from streamer.loader.stall.report import StallReport

OnReport = Callable[[StallReport], None]
# The trainer's step, so that the curves have the axis of its loss. A callback runs on a thread of the loader's.
Step = Callable[[], int]


def to_tensorboard(writer: object, step: Step) -> OnReport:
    """The figures as scalars; the bottleneck and the advice as a text where they change.

    Args:
        writer: a torch.utils.tensorboard.SummaryWriter.
    """
    shown = ""

    def report_to_tensorboard(report: StallReport) -> None:
        nonlocal shown
        at = step()
        for name, value in report.scalars().items():
            writer.add_scalar(name, value, at)
        if (text := f"{report.bottleneck}: {report.advice}") != shown:
            shown = text
            writer.add_text("stall/bottleneck", text, at)

    return report_to_tensorboard


def to_wandb(run: object, step: Step) -> OnReport:
    """The figures, the bottleneck and the advice in one row.

    Args:
        run: of wandb.init().
    """
    # An axis of its own: rows from here must not move the step of the trainer's rows.
    run.define_metric("stall/step")
    run.define_metric("stall/*", step_metric="stall/step")

    def report_to_wandb(report: StallReport) -> None:
        words = {"stall/bottleneck": str(report.bottleneck), "stall/advice": report.advice}
        run.log({**report.scalars(), **words, "stall/step": step()})

    return report_to_wandb


def to_print(step: Step) -> OnReport:
    """A line for people."""
    return lambda report: print(f"step {step()}: {report.headline}")


def train(url: str, cache: Path, on_report: OnReport, steps: list[int]) -> None:
    """Two epochs; the transform is slow, and the reports say so."""

    def slow(sample: dict[str, np.ndarray]) -> np.ndarray:
        time.sleep(0.005)
        return sample["npy"]

    dataset = StreamingDataset(url, cache_dir=cache, transform=slow)
    with StreamingDataLoader(dataset, batch_size=16, num_workers=1, report_every=0.5, on_report=on_report) as loader:
        for _ in range(2):
            for _ in loader:
                steps[0] += 1


def make_data(folder: Path) -> None:
    """Small arrays."""
    folder.mkdir(parents=True)
    for number in range(200):
        np.save(folder / f"{number:03}.npy", np.full(100, number, np.float32))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", choices=("print", "tensorboard", "wandb"), default="print")
    parser.add_argument("--logs", default="runs", help="folder of TensorBoard's files (default: runs)")
    arguments = parser.parse_args()
    steps = [0]
    with tempfile.TemporaryDirectory() as scratch:
        make_data(Path(scratch, "arrays"))
        given = (f"{scratch}/arrays/", Path(scratch, "cache"))
        match arguments.to:
            case "tensorboard":
                from torch.utils.tensorboard import SummaryWriter

                with SummaryWriter(arguments.logs) as writer:
                    train(*given, to_tensorboard(writer, lambda: steps[0]), steps)
            case "wandb":
                import wandb

                with wandb.init(project="streamer") as run:
                    train(*given, to_wandb(run, lambda: steps[0]), steps)
            case _:
                train(*given, to_print(lambda: steps[0]), steps)


if __name__ == "__main__":
    main()
