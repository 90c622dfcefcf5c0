"""Makes and applies selections, each to the result of the one before it.

`loader/dataset.py` makes them of the arguments of `select`, and `member.py` applies them when the dataset is opened.
Annotations and joins that leave out samples without a row add selections to those of the user.
"""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.annotations.join import JoinRules, find_matches
from streamer.base.sorting import unique
from streamer.batches import checks
from streamer.errors import ConfigError
from streamer.manifest.condition import ColumnsOf, Condition
from streamer.manifest.selection import Selection, Where, check_fraction
from streamer.manifest.table import Manifest

if TYPE_CHECKING:
    from streamer.batches.samples.joins import OpenedJoin

logger = logging.getLogger(__name__)


# Names of fields.
Names: TypeAlias = tuple[str, ...]

Ordinals = npt.NDArray[np.int64]
Indices = Sequence[int] | slice | Ordinals | npt.NDArray[np.bool_]
# A selection has indices into the result of the selection before it, and conditions on the sample.
Choice = tuple[Indices | None, Where]


def make_choice(
    indices: Indices | None,
    *,
    keys: str | Sequence[str] | None,
    labels: str | int | Sequence[str | int] | None,
    sizes: tuple[int | None, int | None],
    fraction: tuple[float, float] | None,
    seed: int,
    where: str | None = None,
) -> Choice | None:
    """Returns one selection of the arguments of `StreamingDataset.select`, or None if they have no condition.

    `sizes` are its `min_bytes` and `max_bytes`; the other arguments are those of the same name.

    Raises:
        ConfigError: a value is wrong, as far as that can be known without the manifest.
    """
    for name, size in zip(("min_bytes", "max_bytes"), sizes, strict=True):
        if size is not None:
            checks.at_least(name, size, 0)
    given: object = [keys] if isinstance(keys, str) else keys
    patterns: list[str] | None = None
    if given is not None:
        if not isinstance(given, Iterable) or not all(isinstance(text, str) for text in given):
            raise ConfigError(f"keys={given!r} is neither a text nor a sequence of texts", field="keys")
        patterns = list(given)
    found = Where(
        keys=patterns,
        labels=[labels] if isinstance(labels, str | int) else labels,
        sizes=None if sizes == (None, None) else sizes,
        fraction=None if fraction is None else check_fraction(fraction),
        seed=checks.at_least("seed", seed, 0),
        condition=None if where is None else Condition(where).text,
    )
    if indices is None and found == Where(seed=found.seed):
        return None
    return _make_array(indices), found


def choose(
    manifest: Manifest, choices: Sequence[Choice], fallback_dir: Path | None = None, columns: ColumnsOf | None = None
) -> Selection | None:
    """Applies selections one after the other, and writes each result to a file; returns the last, None for none.

    Args:
        manifest: Manifest of the dataset.
        choices: Selections in the order in which they were made.
        fallback_dir: Where files are written if the manifest's folder is read-only for this process, or None.
        columns: Returns columns of the manifest for conditions on them, or None if there are no such conditions.

    Raises:
        ConfigError: an invalid condition, or no sample is left.
        ManifestError: the selection can be written neither next to the manifest nor to `fallback_dir`.
    """
    selection: Selection | None = None
    for indices, where in choices:
        candidates = None if selection is None else selection.ordinals
        if indices is not None:
            candidates = pick(np.arange(manifest.samples) if candidates is None else candidates, indices)
        selection = Selection.create(
            manifest, msgspec.structs.replace(where, indices=candidates), fallback_dir, columns
        )
    return selection


def pick(ordinals: Ordinals, indices: Indices) -> Ordinals:
    """Returns the ordinals at some indices; negative indices count from the end, as in a list.

    Repeated indices are returned repeatedly, with a warning that the selection drops the repeats.

    Args:
        ordinals: Ordinals to choose from.
        indices: Slice, whole numbers, or one bool for each ordinal.

    Raises:
        ConfigError: they are no indices, one is out of range, or the number of bools is wrong.
    """
    if isinstance(indices, slice):
        return ordinals[indices]
    wanted = np.asarray(_make_array(indices))
    if wanted.dtype == np.bool_ and wanted.shape != ordinals.shape:
        raise ConfigError(f"indices has {wanted.size} bools for {ordinals.size} samples", field="indices")
    if wanted.dtype != np.bool_:
        wanted = wanted.astype(np.int64)
        if wanted.size and not -ordinals.size <= wanted.min() <= wanted.max() < ordinals.size:
            raise ConfigError(
                f"indices go from {wanted.min()} to {wanted.max()}; there are {ordinals.size} samples", field="indices"
            )
    picked: Ordinals = ordinals[wanted]
    if repeated := picked.size - unique(picked).size:
        logger.warning(
            "select(indices=...) names %d samples, of which %d are repeats and are dropped: each comes once in an "
            "epoch; MixedDataset takes some more often",
            picked.size,
            repeated,
        )
    return picked


def _make_array(indices: Indices | None) -> Indices | None:
    """Returns the indices as an array, unless they are a slice or None; raises ConfigError for other values."""
    if indices is None or isinstance(indices, slice):
        return indices
    found = np.asarray(indices)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iub"):
        text = reprlib.repr(indices)
        raise ConfigError(
            f"indices={text}: give a slice, a sequence of whole numbers, or one of bools", field="indices"
        )
    return found if found.size else found.astype(np.int64)


def new_fields(manifest: Manifest, began: Collection[str]) -> frozenset[str]:
    """Returns the fields of a manifest that a job did not have when it began; none if `began` is empty."""
    names = frozenset(spec.name for spec in manifest.facts.fields)
    return names.difference(began) if began else frozenset()


def select_by_annotations(manifest: Manifest, rules: JoinRules | None) -> tuple[Choice, ...]:
    """Returns the selection of the samples that have annotations, or nothing if the others stay.

    Looks the keys up in any case, if they are known, so that the errors of `find_matches` are raised before a sample is
    read.

    Args:
        manifest: Manifest of the dataset.
        rules: Rules of the join, or None without annotations.

    Raises:
        ManifestError: see `find_matches`.
        ConfigError: see `find_matches`; or samples are to be left out whose keys are not known.
    """
    if rules is None:
        return ()
    if (found := find_matches(manifest, rules)) is not None:
        return ((found, Where()),) if rules.missing == "drop" else ()
    if rules.missing == "drop":
        raise ConfigError(
            "missing='drop' is for datasets of files: the keys of other samples are known when they are read; "
            "missing='none' and a transform can leave them out of the loss",
            field="missing",
        )
    return ()


def add_joined(
    choices: list[Choice],
    joins: Sequence[tuple[int, OpenedJoin]],
    choose: Callable[[Sequence[Choice]], Selection | None],
) -> list[Choice]:
    """Adds a selection to `choices` for each join that leaves samples without a row out, and returns the same list.

    Args:
        choices: Selections of the user and of annotations. This list is changed.
        joins: Joins that leave samples out, each with the number of choices that come before it.
        choose: Applies choices, and returns None for no choices.

    Raises:
        ConfigError, ManifestError: see `choose`.
    """
    # The last one comes first, so that the places of the others stay.
    for at, opened in reversed(joins):
        if not opened.table.head.matched.missing:
            continue
        before = choose(choices[:at])
        found = opened.table.found if before is None else opened.table.found[before.ordinals]
        choices.insert(at, (found, Where()))
    return choices
