"""Training under the real Lightning and Accelerate: with StreamingDataLoader, and with torch's own over our dataset."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import cloudpickle
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from streamer import Packing, StreamingDataLoader, StreamingDataset
from tests.documents import documents, lengths, pieces_in, pieces_of, write_megatron

SAMPLES, BATCH = 96, 8
ROW = 64
STEPS = SAMPLES // BATCH

cloudpickle.register_pickle_by_value(sys.modules[__name__])

Make = Callable[[], StreamingDataset]
Closing = Callable[[StreamingDataset], StreamingDataset]
# How a loader is made of a dataset; both kinds with one worker process.
KINDS = {
    "streaming": lambda dataset: StreamingDataLoader(dataset, BATCH, 1),
    "stock": lambda dataset: DataLoader(dataset, BATCH, num_workers=1),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def array_only(sample: dict[str, object]) -> dict[str, object]:
    """Keeps the array only, because Accelerate takes a batch's size from its first field, which must be a tensor."""
    return {"npy": sample["npy"]}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, standing_engine: Callable[[Path], None]) -> Path:
    """Returns a folder of 96 arrays of 80 KB, with an engine."""
    root = tmp_path_factory.mktemp("frameworks")
    (root / "data").mkdir()
    for number in range(SAMPLES):
        np.save(root / "data" / f"{number:03d}.npy", np.full(20_000, number, np.float32))
    standing_engine(root / "data")
    return root


@pytest.fixture
def make(place: Path, closing: Callable[[StreamingDataset], StreamingDataset]) -> Iterator[Make]:
    """Makes datasets that are closed after the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield lambda: closing(StreamingDataset(place / "data", batch_size=BATCH, transform=array_only))


def numbers(batch: dict[str, torch.Tensor]) -> list[int]:
    assert (batch["npy"] == batch["npy"][:, :1]).all()
    return batch["npy"][:, 0].int().tolist()


def plain(make: Make, epochs: int) -> list[list[int]]:
    """Returns the batches of a bare loop."""
    with StreamingDataLoader(make(), BATCH) as loader:
        return [numbers(batch) for _ in range(epochs) for batch in loader]


def on_a_ring(batch: dict[str, torch.Tensor]) -> bool:
    """Says whether the tensor's memory is a ring's."""
    address = batch["npy"].data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, stop = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= address < stop:
            return "streamer-batch" in line
    return False


def close(loader: object) -> None:
    if isinstance(loader, StreamingDataLoader):
        loader.close()


# ---------------------------------------------------------------- Lightning


def rows_module():
    """Makes a module that takes rows of tokens."""
    module = lightning_module()

    def step(batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        module.seen.append({name: batch[name].numpy().copy() for name in ("tokens", "document_ids")})
        return module.layer(batch["tokens"][:, :1].float() / 65536).square().mean()

    module.training_step = step
    return module


def lightning_module():
    lightning = pytest.importorskip("lightning")

    class Recorder(lightning.LightningModule):
        """A LightningModule with one weight that records the batches it is given."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen: list[list[int]] = []
            self.rings: list[bool] = []

        def training_step(self, batch: dict[str, torch.Tensor], number: int) -> torch.Tensor:
            self.seen.append(numbers(batch))
            self.rings.append(on_a_ring(batch))
            return self.layer(batch["npy"][:, :1] / SAMPLES).square().mean()

        def on_train_batch_end(self, *_: object) -> None:
            if self.trainer.global_step == self.trainer.max_steps:
                self.trainer.save_checkpoint(Path(self.trainer.default_root_dir) / "stopped.ckpt")

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.001)

    return Recorder()


def fit(loader: object, root: Path, module: object = None, checkpoint: Path | None = None, **limits: int) -> object:
    """Trains with Lightning; with `max_steps`, saves after the last of them, as ModelCheckpoint does."""
    lightning = pytest.importorskip("lightning")
    quiet = ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")
    trainer = lightning.Trainer(accelerator="cpu", default_root_dir=root, **dict.fromkeys(quiet, False), **limits)
    module = module or lightning_module()
    trainer.fit(module, loader, ckpt_path=checkpoint, weights_only=False)
    return module


@pytest.mark.slow
@kinds
def test_lightning_trains_on_it(make: Make, tmp_path: Path, kind: str) -> None:
    """Lightning trains two epochs with every sample once in each, on StreamingDataLoader and on torch's loader.

    With StreamingDataLoader the batches are those of a bare loop, and their tensors are on the ring.
    """
    loader = KINDS[kind](make())
    module = fit(loader, tmp_path, max_epochs=2)
    close(loader)
    if kind == "streaming":
        assert module.seen == plain(make, 2)
        assert all(module.rings)
    # Lightning begins an epoch of torch's loader that it never asks: it is over for the dataset.
    for epoch in (module.seen[:STEPS], module.seen[STEPS:]):
        assert sorted(number for batch in epoch for number in batch) == list(range(SAMPLES))


@pytest.mark.slow  # the import of Lightning's trainer alone
@pytest.mark.parametrize("stop", [5, STEPS, STEPS + 3])
def test_lightning_resumes_in_the_middle_of_an_epoch(make: Make, tmp_path: Path, stop: int) -> None:
    """Lightning resumes from its checkpoint with every batch once and in the same order."""
    with StreamingDataLoader(make(), BATCH, 1) as loader:
        before = fit(loader, tmp_path, max_steps=stop)
    with StreamingDataLoader(make(), BATCH, 1) as loader:
        after = fit(loader, tmp_path, checkpoint=tmp_path / "stopped.ckpt", max_epochs=2)
    assert before.seen + after.seen == plain(make, 2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_lightning_resumes_rows_of_documents(place: Path, tmp_path: Path, closing: Closing) -> None:
    """Lightning stops and resumes training on packed rows in mid-epoch with every token once in each epoch."""
    given = documents(lengths(300, ROW))
    url = write_megatron(tmp_path / "tokens", given)

    def rows() -> StreamingDataset:
        packing = Packing(ROW, rows_per_set=16)
        return closing(StreamingDataset(url, format="tokens", packing=packing, cache_dir=place / "cache"))

    with StreamingDataLoader(rows(), BATCH, 1) as loader:
        steps = len(loader)
        before = fit(loader, tmp_path, rows_module(), max_steps=steps // 2)
    with StreamingDataLoader(rows(), BATCH, 1) as loader:
        after = fit(loader, tmp_path, rows_module(), tmp_path / "stopped.ckpt", max_epochs=2)
    seen = before.seen + after.seen
    assert len(seen) == 2 * steps
    assert pieces_in(seen[:steps]) == pieces_in(seen[steps:]) == pieces_of(given, ROW)


@pytest.mark.slow  # the import of Lightning alone
def test_what_lightning_reads_of_a_loader(make: Make) -> None:
    """Lightning takes a StreamingDataLoader for one of an iterable dataset, and so gives it no sampler of its own."""
    data = pytest.importorskip("lightning.fabric.utilities.data")
    with StreamingDataLoader(make(), BATCH, 1) as loader:
        assert data.has_iterable_dataset(loader)
        assert data.sized_len(loader) == STEPS
        data._set_sampler_epoch(loader, 3)
        assert loader.dataset.epoch == 0


# ---------------------------------------------------------------- Accelerate


@pytest.fixture
def accelerate() -> Iterator[ModuleType]:
    """Returns accelerate, and ends its state of this process, which other tests' loaders would report to."""
    yield pytest.importorskip("accelerate")
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@pytest.mark.slow
@kinds
def test_accelerate_trains_on_it(make: Make, kind: str, accelerate: ModuleType) -> None:
    """Accelerate trains on the batches of a bare loop, with gradients accumulated over two of them."""
    # By default one rank reads for all where the dataset is an iterable, and copies each batch.
    configuration = accelerate.DataLoaderConfiguration(dispatch_batches=False)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2, dataloader_config=configuration)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    loader = KINDS[kind](make())
    model, optimizer, prepared = accelerator.prepare(model, optimizer, loader)
    seen, rings = [], []
    for _ in range(2):
        for batch in prepared:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch["npy"][:, :1] / SAMPLES).square().mean())
                optimizer.step()
                optimizer.zero_grad()
            seen.append(numbers(accelerator.gather_for_metrics(batch)))
            rings.append(on_a_ring(batch))
    close(loader)
    assert seen == plain(make, 2)
    assert rings == [kind == "streaming"] * len(rings)


@pytest.mark.slow
def test_accelerate_saves_and_restores_the_place(make: Make, tmp_path: Path, accelerate: ModuleType) -> None:
    """A loader registered with Accelerate for checkpointing goes on at the next batch in a new run."""

    def accelerator_for(loader: StreamingDataLoader) -> object:
        accelerator = accelerate.Accelerator(cpu=True)
        accelerator.register_for_checkpointing(loader)
        return accelerator

    with StreamingDataLoader(make(), BATCH, 1) as loader:
        accelerator, batches = accelerator_for(loader), iter(loader)
        before = [numbers(next(batches)) for _ in range(5)]
        accelerator.save_state(str(tmp_path))
    with StreamingDataLoader(make(), BATCH, 1) as loader:
        accelerator_for(loader).load_state(str(tmp_path))
        after = [numbers(batch) for batch in loader]
    assert before + after == plain(make, 1)
