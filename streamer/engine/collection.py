"""The datasets of one session as one: their chunks are numbered end to end. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from streamer.engine.datasets import Dataset
from streamer.errors import StreamerError


class Collection:
    """One dataset, or the parts of a mix. Two parts of one dataset have numbers of their own and equal keys.

    Args:
        datasets: of the parts, in order; at least one.
        names: of the parts, for people; "" of a lone dataset.

    Attributes:
        file_bytes: int64 (chunks,): the length of each chunk's file.
        starts: the first chunk number of each part.
    """

    def __init__(self, datasets: Sequence[Dataset], names: Sequence[str]) -> None:
        self.datasets = tuple(datasets)
        self.names = tuple(names)
        counts = [dataset.manifest.chunks for dataset in datasets]
        self.starts: list[int] = [0, *np.cumsum(counts).tolist()][:-1]
        self.file_bytes: npt.NDArray[np.int64] = (
            datasets[0].file_bytes if len(datasets) == 1 else np.concatenate([one.file_bytes for one in datasets])
        )

    def __repr__(self) -> str:
        return f"Collection({len(self.datasets)} datasets, {len(self.file_bytes)} chunks)"

    def __len__(self) -> int:
        return len(self.datasets)

    def locate(self, chunk: int) -> tuple[int, int]:
        """The part of a chunk and its number there."""
        part = bisect_right(self.starts, chunk) - 1
        return part, chunk - self.starts[part]

    def parts_of(self, chunks: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
        """The part of each chunk."""
        found: npt.NDArray[np.int64] = np.searchsorted(np.asarray(self.starts), chunks, side="right") - 1
        return found

    def span(self, part: int) -> tuple[int, int]:
        """The half-open range of a part's chunk numbers."""
        return self.starts[part], self.starts[part] + self.datasets[part].manifest.chunks

    def key(self, chunk: int) -> bytes:
        """The name of a chunk in the cache.

        Raises:
            ManifestError: there is no such chunk.
        """
        part, local = self.locate(chunk)
        return self.datasets[part].key(local)

    def label(self, chunk: int) -> str:
        """A chunk as messages name it."""
        part, local = self.locate(chunk)
        return f"chunk {local} of member {self.names[part]}" if self.names[part] else f"chunk {local}"

    def said_of(self, chunk: int, error: StreamerError) -> StreamerError:
        """An error over a chunk, with the name of its part."""
        name = self.names[self.locate(chunk)[0]]
        return error.of_member(name) if name else error

    def relative_values(self, values: Sequence[float]) -> tuple[float, ...]:
        """The values of the parts as multiples of the largest; parts of one dataset use its bytes together."""
        sums: Counter[Dataset] = Counter()
        for dataset, value in zip(self.datasets, values, strict=True):
            sums[dataset] += value  # type: ignore[assignment]
        most = max(sums.values()) or 1.0
        return tuple(sums[dataset] / most for dataset in self.datasets)

    def byte_rates(self, values: Sequence[float]) -> list[float]:
        """The share of each part in the bytes that an epoch needs."""
        rates = [value * dataset.total_bytes for dataset, value in zip(self.datasets, values, strict=True)]
        return [rate / (sum(rates) or 1.0) for rate in rates]

    def mean_bytes(self, values: Sequence[float]) -> float:
        """Of a chunk's file, each chunk counted as often as an epoch needs it."""
        pairs = list(zip(self.datasets, values, strict=True))
        chunks = sum(value * dataset.manifest.chunks for dataset, value in pairs)
        return sum(value * dataset.total_bytes for dataset, value in pairs) / max(1.0, chunks)
