"""Gives the batches of a loader to DALI, as its `external_source` takes them. For users who decode with DALI.

loader = StreamingDataLoader(dataset, 256, num_workers=4, ragged=("jpg",))

@pipeline_def(batch_size=256, num_threads=4, device_id=0)
def pipeline():
    jpegs, labels = fn.external_source(source=DaliSource(loader, ("jpg", "cls")), num_outputs=2, no_copy=True)
    return fn.decoders.image(jpegs, device="mixed"), labels
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from streamer.batches.batch.ragged import Ragged
from streamer.errors import ConfigError

Output = npt.NDArray[np.generic] | list[npt.NDArray[np.generic]]


class DaliSource:
    """Yields the batches of a loader for an `external_source` with `no_copy=True`, without copying them.

    Each iteration is one epoch of the loader. At its end the pipeline raises StopIteration; after `pipeline.reset()` it
    goes on with the next one. Imports no DALI.

    Args:
        loader: Loader of batches that are dicts.
        fields: Names of the fields that are outputs, in order. An output is a list of arrays for a field that is
            `Ragged`, else an array.
        held: Number of batches whose memory stays: those in the queue of the pipeline (`prefetch_queue_depth`, 2), and
            one more.
    """

    def __init__(self, loader: Iterable[object], fields: Sequence[str], held: int = 3) -> None:
        self._loader = loader
        self._fields = tuple(fields)
        # The batches stay when an epoch has ended: the pipeline still reads the last ones.
        self._held: deque[object] = deque(maxlen=held)

    def __repr__(self) -> str:
        return f"DaliSource({self._loader!r}, {self._fields})"

    def __iter__(self) -> Iterator[tuple[Output, ...]]:
        """Yields a tuple of the outputs of each batch of the next epoch, the numbers of a field as an array (n, 1).

        Raises:
            KeyError: a batch has no such field.
            ConfigError: a batch is no dict.
            Exception: what the loader raises.
        """
        for batch in self._loader:
            if not isinstance(batch, Mapping):
                raise ConfigError(
                    f"DaliSource needs batches that are dicts of fields, and this one is a {type(batch).__name__}: "
                    "leave transforms and collate functions out that make something else of them",
                    field="loader",
                )
            self._held.append(batch)
            outputs: list[Output] = []
            for field in self._fields:
                value = batch[field]
                if isinstance(value, Ragged):
                    outputs.append([view.numpy() for view in value.views()])
                else:
                    array: npt.NDArray[np.generic] = np.asarray(value)
                    # A number of each sample is an array of one number there.
                    outputs.append(array.reshape(-1, 1) if array.ndim == 1 else array)
            yield tuple(outputs)
