"""The attributes of torch's DataLoader, which trainers read, with the values that fit a `StreamingDataLoader`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamer.batches.contracts import Collate
from streamer.loader.options.loader_options import LoaderSettings

if TYPE_CHECKING:
    from torch.utils.data import BatchSampler


class TorchAttributes:
    """The attributes that torch's loader has for an iterable dataset; all of them can only be read.

    Lightning, DeepSpeed, Composer and others read batch size, workers and samplers. There is no sampler: the order
    belongs to the dataset, so they must not replace or wrap one.
    """

    _settings: LoaderSettings

    sampler = None
    worker_init_fn = None
    generator = None
    multiprocessing_context = None
    pin_memory_device = ""
    in_order = True

    @property
    def batch_size(self) -> int:
        """Samples per batch of this rank."""
        return self._settings.batch_size

    @property
    def num_workers(self) -> int:
        """Number of workers, or 0 if the trainer's thread makes the batches."""
        return self._settings.worker_count

    @property
    def drop_last(self) -> bool:
        """Whether an incomplete last batch is left out."""
        return self._settings.last_batch == "drop"

    @property
    def batch_sampler(self) -> BatchSampler:
        """Batch size and `drop_last`; like torch's for an iterable dataset, it has no indices."""
        from torch.utils.data import BatchSampler

        return BatchSampler(None, self.batch_size, self.drop_last)  # type: ignore[arg-type]

    @property
    def collate_fn(self) -> Collate:
        """The function that makes a batch of samples."""
        from torch.utils.data import default_collate

        return self._settings.collate_fn or default_collate

    @property
    def pin_memory(self) -> bool:
        """Whether the ring is registered with CUDA."""
        import torch

        return self._settings.worker_count > 0 and self._settings.pin != "off" and torch.cuda.is_available()

    @property
    def persistent_workers(self) -> bool:
        """Whether there are workers: they run as long as the loader."""
        return self._settings.worker_count > 0

    @property
    def prefetch_factor(self) -> int | None:
        """Batches begun and not yet taken, per worker; None without workers."""
        workers = self._settings.worker_count
        return max(1, self._settings.span // workers) if workers else None

    @property
    def timeout(self) -> float:
        """Seconds that one sample may take, or 0 without a limit."""
        return self._settings.timeout
