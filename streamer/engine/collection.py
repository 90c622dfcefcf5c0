"""Joins the datasets of one session, so that their chunks are numbered as those of one dataset. Pure.

`engine.py` makes a `Collection`, and `session.py` keeps it with the `Parts` of its session. All modules that work for
sessions use the numbers of chunks in it, and so does `tools/planning/simulate.py`, without an engine.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.engine.datasets import Dataset
from streamer.errors import ProtocolError, StreamerError
from streamer.wire.messages import Part


class UseCount(msgspec.Struct):
    """Counts needs and hits of one session, in one epoch or for one part.

    Attributes:
        needs: number of uses that were asked for.
        hits: number of these whose chunk was local or on its way already.
        needed_bytes, hit_bytes: lengths of the chunks' files of these.
    """

    needs: int = 0
    hits: int = 0
    needed_bytes: int = 0
    hit_bytes: int = 0

    def add(self, size_bytes: int, hit: bool) -> None:
        """Adds one need of a chunk whose file has `size_bytes`."""
        self.needs += 1
        self.needed_bytes += size_bytes
        if hit:
            self.hits += 1
            self.hit_bytes += size_bytes


class Collection:
    """One dataset, or the parts of a mix, one after the other.

    A chunk's number is its number in its part, plus the number of chunks of all parts before. Two parts of one dataset
    have chunks with different numbers and equal keys.

    Args:
        datasets: datasets of the parts, in order; at least one.
        names: names of the parts as users see them. A lone dataset has the name "".

    Attributes:
        datasets, names: as given.
        file_bytes: length of each chunk's file, int64, (chunks,), of recoded chunks as planned.
        starts: number of the first chunk of each part.
    """

    def __init__(self, datasets: Sequence[Dataset], names: Sequence[str]) -> None:
        self.datasets = tuple(datasets)
        self.names = tuple(names)
        self._lone = len(self.datasets) == 1
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
        """Returns the index of a chunk's part, and the chunk's number in that part."""
        if self._lone:
            return 0, chunk
        part = bisect_right(self.starts, chunk) - 1
        return part, chunk - self.starts[part]

    def parts_of(self, chunks: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
        """Returns the index of each chunk's part, (chunks,)."""
        found: npt.NDArray[np.int64] = np.searchsorted(np.asarray(self.starts), chunks, side="right") - 1
        return found

    def span(self, part: int) -> tuple[int, int]:
        """Returns the half-open range of a part's chunk numbers."""
        return self.starts[part], self.starts[part] + self.datasets[part].manifest.chunks

    def key(self, chunk: int) -> bytes:
        """Returns the key of a chunk, its name in the cache, 16 bytes.

        Raises:
            ManifestError: there is no such chunk.
        """
        part, local = self.locate(chunk)
        return self.datasets[part].key(local)

    def get_file_length(self, chunk: int) -> int | None:
        """Returns the length of a chunk's file in bytes; None if it is not known, because the chunk is recoded."""
        recoded = self.datasets[self.locate(chunk)[0]].manifest.recoded
        return None if recoded else int(self.file_bytes[chunk])

    def label(self, chunk: int) -> str:
        """Returns a text that names a chunk in messages, with the name of its part if that has one."""
        part, local = self.locate(chunk)
        return f"chunk {local} of member {self.names[part]}" if self.names[part] else f"chunk {local}"

    def name_error(self, chunk: int, error: StreamerError) -> StreamerError:
        """Returns an error over a chunk, with the name of the chunk's part added if that has one."""
        name = self.names[self.locate(chunk)[0]]
        return error.of_member(name) if name else error

    def byte_rates(self, values: Sequence[float]) -> list[float]:
        """Returns the share of each part in the bytes that an epoch needs, if `values` are the parts' passes per epoch.

        The shares are 0 if no part has a value.
        """
        rates = [value * dataset.total_bytes for dataset, value in zip(self.datasets, values, strict=True)]
        return [rate / (sum(rates) or 1.0) for rate in rates]

    def mean_bytes(self, values: Sequence[float]) -> float:
        """Returns the mean length of a chunk's file in bytes, where each counts as often as an epoch needs it.

        Args:
            values: passes per epoch of each part. If all are 0, each file counts once.
        """
        if not any(values):
            values = [1.0] * len(values)
        pairs = list(zip(self.datasets, values, strict=True))
        chunks = sum(value * dataset.manifest.chunks for dataset, value in pairs)
        return sum(value * dataset.total_bytes for dataset, value in pairs) / max(1.0, chunks)


class Parts:
    """Keeps what a session knows of each of its parts: value, running pass, counts.

    Args:
        name: name of the session.
        collection: the datasets.
        requests: what the client has said of each part. A lone dataset is one part without a name.

    Attributes:
        names: names of the policy's sessions, one for each part.
        values: passes of each part in the running epoch.
        running_pass: number of the pass that each part is in. None means that it has not begun.
        counts: needs and hits of each part since the session began. For a lone dataset they stay 0.
        mean_bytes: mean length of a chunk's file, where each chunk counts as often as an epoch needs it.
    """

    def __init__(self, name: str, collection: Collection, requests: Sequence[Part]) -> None:
        self.names = [name] if len(requests) == 1 else [f"{name}/{part}" for part in range(len(requests))]
        self.values = tuple(request.value for request in requests)
        self.running_pass: list[int | None] = [None] * len(requests)
        self.counts = [UseCount() for _ in requests]
        self.mean_bytes = collection.mean_bytes(self.values)
        self._collection = collection
        # Values by the epoch that they begin with.
        self._next_values: dict[int, tuple[float, ...]] = {}

    def __repr__(self) -> str:
        return f"Parts({len(self.names)}, running_pass={self.running_pass[:8]})"

    def expect_values(self, epoch: int, values: tuple[float, ...]) -> None:
        """Records the values that hold from an epoch on, which `begin_epoch` applies.

        Raises:
            ProtocolError: there is not one value for each part.
        """
        if len(values) != len(self.names):
            raise ProtocolError(f"{len(values)} values for {len(self.names)} parts")
        self._next_values[epoch] = values

    def begin_epoch(self, epoch: int) -> bool:
        """Applies the values of the epoch that begins now; returns whether the values have changed."""
        before = self.values
        for begun in sorted(known for known in self._next_values if known <= epoch):
            self.values = self._next_values.pop(begun)
        self.mean_bytes = self._collection.mean_bytes(self.values)
        return self.values != before

    def relative_values(self) -> dict[str, float]:
        """Returns the value of each part as a share of the largest, by the names of the policy's sessions.

        The values of parts of one dataset are added, because they share its bytes.
        """
        sums: dict[str, float] = {}
        digests = [dataset.manifest.digest for dataset in self._collection.datasets]
        for digest, value in zip(digests, self.values, strict=True):
            sums[digest] = sums.get(digest, 0.0) + value
        largest = max(sums.values()) or 1.0
        return {name: sums[digest] / largest for name, digest in zip(self.names, digests, strict=True)}
