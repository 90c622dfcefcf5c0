"""Selections of selections: each condition applies to the result of the one before it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.errors import ConfigError
from streamer.manifest.selection import Selection, Where
from streamer.manifest.table import Manifest

Ordinals = npt.NDArray[np.int64]
Indices = Sequence[int] | slice | Ordinals | npt.NDArray[np.bool_]
# Indices refer to the previous selection, all other conditions to the sample.
Choice = tuple[Indices | None, Where]


def choose(manifest: Manifest, choices: Sequence[Choice], spare: Path | None = None) -> Selection | None:
    """Applies selections one after the other; None if there are none.

    Args:
        manifest: of the dataset.
        choices: in order.
        spare: the folder of selections if the cache folder is read-only for this process.

    Raises:
        ConfigError: an invalid condition, or no sample is left.
        ManifestError: the selection can be written neither next to the manifest nor to `spare`.
    """
    selection: Selection | None = None
    for indices, where in choices:
        candidates = None if selection is None else selection.ordinals
        if indices is not None:
            candidates = pick(np.arange(manifest.samples) if candidates is None else candidates, indices)
        selection = Selection.create(manifest, msgspec.structs.replace(where, indices=candidates), spare)
    return selection


def pick(ordinals: Ordinals, indices: Indices) -> Ordinals:
    """The `ordinals` at `indices`; negative ones count from the end, as in a list.

    Raises:
        ConfigError: an index out of range, or a wrong number of bools.
    """
    if isinstance(indices, slice):
        return ordinals[indices]
    wanted = np.asarray(indices)
    if wanted.dtype == np.bool_ and wanted.shape != ordinals.shape:
        raise ConfigError(f"indices has {wanted.size} bools for {ordinals.size} samples", field="indices")
    if wanted.dtype != np.bool_:
        wanted = _checked(wanted.astype(np.int64), ordinals.size)
    picked: Ordinals = ordinals[wanted]
    return picked


def _checked(wanted: Ordinals, samples: int) -> Ordinals:
    if wanted.size and not -samples <= wanted.min() <= wanted.max() < samples:
        raise ConfigError(
            f"indices go from {wanted.min()} to {wanted.max()}; there are {samples} samples", field="indices"
        )
    return wanted
