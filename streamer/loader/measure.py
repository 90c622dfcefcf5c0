"""Counts the tokens of every document once, so that rows can be planned before they are read.

Users call `measure_lengths`, and `streamer measure` does (`cli/measure_command.py`).
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from streamer.batches import checks
from streamer.batches.rows.costs import map_npy
from streamer.batches.samples.cached_bytes import ChunkUnreadableError
from streamer.batches.samples.maker import SampleLocation, SampleMaker, describe_key
from streamer.batches.samples.seeding import UNSEEDED
from streamer.batches.skipping import SkipLedger, Skipped, may_skip
from streamer.decode.transforms import make_transform, takes
from streamer.errors import ConfigError, StreamerError
from streamer.executors.runner import run_all, runner
from streamer.loader.dataset import StreamingDataset
from streamer.loader.dataset_scan import DatasetScan, ScanRecipe
from streamer.manifest.table import Manifest
from streamer.removed import check_arguments, warn_of

logger = logging.getLogger(__name__)

Count = str | Callable[[object], int]
Integers = npt.NDArray[np.int64]
# Ordinals of samples in the manifest, and for each its length, or a text that says why it cannot be made.
_Measured = tuple[Integers, Sequence[int | str]]

# Number of samples that are read in one session. A task reads fewer, since an interruption loses what it has counted.
_SESSION_SAMPLES = 1 << 20
_TASK_SAMPLES = 1 << 16
# Number of samples that this process reads between two calls of `on_progress`.
_BATCH = 1024
# Number of parts for each task that an executor runs at a time. With several, all of them end at about the same time.
_PARTS = 4
# The lengths so far are written at this interval, and when a call is interrupted.
_SAVE_SECONDS = 60.0
_MAX_LENGTH = np.iinfo(np.int32).max
_CHUNK = np.dtype([("key", "V16"), ("samples", np.int64)])


@check_arguments("measure_lengths")
def measure_lengths(
    dataset: StreamingDataset,
    count: Count,
    *,
    path: str | os.PathLike[str],
    num_workers: int = 0,
    resume_from: str | os.PathLike[str] | None = None,
    executor: str | Executor | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> npt.NDArray[np.int32]:
    """Counts the tokens of every sample, and writes the numbers to a file for `Packing(lengths=...)`.

    Reads the whole dataset once through the cache, in the order of its objects, in this process, in several, or in
    tasks. With on_error="skip" a sample that cannot be made gets -1, and is in no row, as does one without annotations
    that leaves the dataset. The global random generators are not seeded for the transform: a length must not depend on
    them. A call that is interrupted leaves what it has counted of whole chunks in `PATH.partial.npy`.

    Args:
        dataset: Dataset of which all samples are counted, with the transform that training uses. Its
            `packing` and `balance` do not matter.
        count: Name of a field, whose length counts, or a function of what the transform returns.
        path: Path of the .npy file: int32, one number for each sample of the whole, by the numbers of `dataset[i]`.
        num_workers: Number of processes that read, or 0 for this one. An executor has its own.
        resume_from: File of an earlier call with the same count and transform, which may be that of `path`, and which
            may have been interrupted: only the chunks of samples that it does not have are read. It needs the
            `PATH.chunks.npy` that each call writes beside its file.
        executor: Executor of tasks, as "processes:8", "dask:tcp://scheduler:8786", "ray:auto" or an object. Each task
            reads a run of chunks through the cache of its machine. By default this process.
        on_progress: Function that is called now and then with the number of samples read, and of all to be read.

    Returns:
        The numbers, as in the file.

    Raises:
        ConfigError: the dataset is a selection, whose samples have no numbers in the whole; `count` is no count or no
            field, `path` is no .npy or cannot be written, `resume_from` is no file of this function, or `num_workers`
            and `executor` are both given.
        ManifestError: a task has found other objects below the url.
        StreamerError: a sample cannot be read, or more cannot be made than the budget of `on_error` allows.
        Exception: the error of `count` or of the transform.
    """
    if not isinstance(dataset, StreamingDataset):
        raise ConfigError(f"measure_lengths({type(dataset).__name__}): give a StreamingDataset", field="dataset")
    member = dataset._member
    target = Path(str(checks.path("path", path)))
    if target.suffix != ".npy":
        raise ConfigError(f"path={str(target)!r}: give the path of an .npy file", field="path")
    if checks.at_least("num_workers", num_workers, 0) and executor is not None:
        raise ConfigError(
            f"num_workers={num_workers} beside executor=: each task reads in one process; leave num_workers out",
            field="num_workers",
        )
    # A path that cannot be written is an error before anything is read.
    _touch_beside(target).unlink()
    if member.choices:
        raise ConfigError(
            "measure_lengths() counts the samples of a whole dataset: call it before select(); a selection with "
            "packing= uses the same file",
            field="dataset",
        )
    counter = _make_counter(member.options.transform, count)
    if num_workers:
        executor = f"processes:{num_workers}"
    with closing(DatasetScan(member, counter)) as scan:
        table = _LengthsTable(scan, target, SkipLedger(member.options.skip_rules.budget))
        if resume_from is not None:
            table.take_over(str(resume_from))
        scan_samples = partial(_measure_samples, member.options.skip_rules.on_error == "skip")
        if executor is None:
            found = _measure_here(scan, scan_samples, table.cut_parts(_SESSION_SAMPLES))
        else:
            found = _measure_in_tasks(scan, scan_samples, executor, table.cut_parts)
        with closing(found):
            return table.run(found, on_progress)


def measure(
    dataset: StreamingDataset,
    count: Count,
    *,
    to: str | os.PathLike[str],
    num_workers: int = 0,
    known: str | os.PathLike[str] | None = None,
    on: str | Executor | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> npt.NDArray[np.int32]:
    """Counts as `measure_lengths` does, with the arguments of earlier releases, and warns."""
    warn_of("measure(to=, known=, on=) is now measure_lengths(path=, resume_from=, executor=)", 2)
    return measure_lengths(
        dataset,
        count,
        path=to,
        num_workers=num_workers,
        resume_from=known,
        executor=on,
        on_progress=on_progress,
    )


class _LengthsTable:
    """Keeps the lengths of all samples of a dataset that are known so far, and writes them to files.

    Args:
        scan: Reader of the samples.
        target: Path of the file.
        ledger: Record of samples that could not be made.
    """

    def __init__(self, scan: DatasetScan, target: Path, ledger: SkipLedger) -> None:
        self._scan = scan
        self._target = target
        self._ledger = ledger
        self._manifest = scan.manifest
        self._lengths = np.full(self._manifest.samples, -1, np.int32)
        selected = scan.ordinals
        # Samples without annotations that leave the dataset are never read.
        self._is_known = np.full(self._manifest.samples, selected is not None)
        if selected is not None:
            self._is_known[selected] = False

    def __repr__(self) -> str:
        return (
            f"_LengthsTable({str(self._target)!r}, {np.count_nonzero(self._is_known)} of {len(self._is_known)} samples)"
        )

    def take_over(self, earlier: str) -> None:
        """Takes over the lengths of chunks that an earlier call has measured, whether it was interrupted or not.

        Args:
            earlier: Path of its file; what it has left of an interrupted call is read, too.

        Raises:
            ConfigError: the file was not written by `measure_lengths`.
        """
        partial_file = find_partial_file(Path(earlier))
        for path in [each for each in (Path(earlier), partial_file) if each.exists()] or [Path(earlier)]:
            self._is_known |= _fill_in(self._lengths, self._manifest, path, earlier)

    def cut_parts(self, max_samples: int) -> Iterator[Integers]:
        """Yields the ordinals of samples whose length is unknown, in parts of whole chunks.

        Args:
            max_samples: Most samples of a part, unless a chunk has more.
        """
        firsts = self._manifest.chunk_first
        chunk = 0
        while chunk < self._manifest.chunks:
            begin = int(firsts[chunk])
            chunk = max(chunk + 1, int(firsts.searchsorted(begin + max_samples, "right")) - 1)
            unknown = np.flatnonzero(~self._is_known[begin : int(firsts[chunk])])
            if len(unknown):
                yield begin + unknown

    def run(self, found: Iterable[_Measured], on_progress: Callable[[int, int], None]) -> npt.NDArray[np.int32]:
        """Takes all lengths that are measured, writes the file, and returns the lengths: int32, (samples,).

        After an error or Ctrl-C the lengths so far are in `find_partial_file`.

        Args:
            found: Measured lengths, until all are known.
            on_progress: Called with the number of samples that were read so far, and of all that are read.

        Raises:
            DecodeError: more samples cannot be made than the budget of the dataset allows.
        """
        total = int(np.count_nonzero(~self._is_known))
        done = 0
        saved_at = time.monotonic()
        try:
            for ordinals, lengths in found:
                self._note(ordinals, lengths)
                done += len(ordinals)
                on_progress(done, total)
                if time.monotonic() - saved_at > _SAVE_SECONDS:
                    self._save_partly()
                    saved_at = time.monotonic()
        except BaseException:
            if done:
                self._save_partly()
            raise
        _write(self._target, self._lengths, _list_chunks(self._manifest))
        for path in _list_files(find_partial_file(self._target)):
            path.unlink(missing_ok=True)
        tokens = int(self._lengths[self._lengths > 0].sum(dtype=np.int64))
        logger.info("%s: %d tokens of %d samples", self._target, tokens, len(self._lengths))
        return self._lengths

    def _note(self, ordinals: Integers, lengths: Sequence[int | str]) -> None:
        """Notes lengths, and records samples that cannot be made.

        Raises:
            DecodeError: more samples cannot be made than the budget of the dataset allows.
        """
        self._lengths[ordinals] = [-1 if isinstance(length, str) else length for length in lengths]
        self._is_known[ordinals] = True
        selected = self._scan.ordinals
        skipped = [
            Skipped(
                ordinal=int(ordinal if selected is None else selected.searchsorted(ordinal)),
                key=describe_key(self._manifest, int(ordinal)),
                cause=length,
            )
            for ordinal, length in zip(ordinals, lengths, strict=True)
            if isinstance(length, str)
        ]
        self._ledger.note(skipped, packed=True)
        self._ledger.check()

    def _save_partly(self) -> None:
        """Writes the lengths of those chunks whose samples are all known to the file of `find_partial_file`."""
        bounds = pairwise(self._manifest.chunk_first.tolist())
        is_complete = np.array([bool(self._is_known[first:stop].all()) for first, stop in bounds], np.bool_)
        lengths = self._lengths[np.repeat(is_complete, self._manifest.chunk_samples)]
        path = find_partial_file(self._target)
        _write(path, lengths, _list_chunks(self._manifest)[is_complete])
        logger.info("%s: %d of %d samples so far", path, len(lengths), len(self._lengths))


def find_partial_file(path: Path) -> Path:
    """Returns the path of the file that an interrupted call leaves in place of the file at `path`."""
    return Path(f"{path}.partial.npy")


# Yields the length of each sample, or a text that says why it cannot be made; see `_measure_samples`.
_ScanSamples = Callable[["DatasetScan | ScanRecipe", Integers], Generator["int | str"]]


def _measure_samples(skips: bool, scan: DatasetScan | ScanRecipe, ordinals: Integers) -> Generator[int | str]:
    """Yields the length of each sample, in the order of `ordinals`.

    Args:
        skips: Whether the dataset skips samples that cannot be made; such a sample yields the text of its error.
        scan: Reader of the samples.
        ordinals: Numbers of the samples in the manifest.
    """

    def measure_sample(maker: SampleMaker, place: SampleLocation) -> int | str:
        try:
            return maker.make(place)  # type: ignore[return-value]  # the counter's
        except ChunkUnreadableError:
            raise
        except Exception as error:
            if not skips or not may_skip(error):
                raise
            return f"{type(error).__name__}: {error}"

    return scan.make(ordinals, measure_sample)


def _measure_here(scan: DatasetScan, scan_samples: _ScanSamples, parts: Iterable[Integers]) -> Generator[_Measured]:
    """Yields the lengths of all parts, measured in this process, in batches of 1,024."""
    for ordinals in parts:
        with closing(scan_samples(scan, ordinals)) as lengths:
            for first in range(0, len(ordinals), _BATCH):
                batch = ordinals[first : first + _BATCH]
                yield batch, [next(lengths) for _ in batch]


def _measure_in_tasks(
    scan: DatasetScan,
    scan_samples: _ScanSamples,
    executor: str | Executor,
    cut_parts: Callable[[int], Iterator[Integers]],
) -> Generator[_Measured]:
    """Yields the lengths that each task has measured, in no fixed order.

    An error of the user's code is raised at once: a repetition of the task would raise it again.
    """
    with runner(executor) as running:
        share = scan.manifest.samples // (_PARTS * running.most_tasks)
        parts = cut_parts(min(_TASK_SAMPLES, max(1, share)))
        for found in run_all(running, partial(_measure_part, scan_samples, scan.recipe()), parts):
            if isinstance(found, Exception):
                raise found
            yield found


def _measure_part(scan_samples: _ScanSamples, recipe: ScanRecipe, ordinals: Integers) -> _Measured | Exception:
    """Measures some samples in a task; returns an error of the user's code, so that the task is not repeated."""
    try:
        return ordinals, list(scan_samples(recipe, ordinals))
    except StreamerError:
        raise
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything
        return error


def _make_counter(transform: object, count: Count) -> Callable[..., int]:
    """Returns a transform whose result is the number of tokens of a sample; it runs the user's transform before.

    It takes `rng` only if the user's transform does, since making a generator costs time. Raises ConfigError if `count`
    is neither a name nor a function.
    """
    if not isinstance(count, str) and not callable(count):
        raise ConfigError(f"count={count!r} is neither the name of a field nor a function", field="count")
    own = make_transform(transform)  # type: ignore[arg-type]
    given: dict[str, object] = {"out": {}} if takes(own, "out") else {}

    def count_tokens(sample: dict[str, object], **more: object) -> int:
        made: object = sample if own is None else own(sample, **given, **more)
        length = checks.at_least("count", _length_of(made, count) if isinstance(count, str) else count(made), 0)
        if length > _MAX_LENGTH:
            raise ConfigError(
                f"count: {length} tokens of one sample; at most {_MAX_LENGTH} are possible", field="count"
            )
        return length

    def count_with_rng(sample: dict[str, object], rng: np.random.Generator) -> int:
        return count_tokens(sample, rng=rng)

    counter = count_with_rng if takes(own, "rng") else count_tokens
    setattr(counter, UNSEEDED, True)
    return counter


def _length_of(sample: object, name: str) -> int:
    """Returns the length of a field of a sample.

    Raises:
        ConfigError: the sample does not have the field, or its value has no length.
    """
    fields = sample if isinstance(sample, Mapping) else {}
    if name not in fields:
        has = ", ".join(map(str, fields)) or f"none: it is of type {type(sample).__name__}"
        raise ConfigError(f"count={name!r} is not a field of the sample; its fields are {has}", field="count")
    try:
        return len(fields[name])
    except TypeError as error:
        kind = type(fields[name]).__name__
        raise ConfigError(f"count={name!r}: a value of type {kind} has no length", field="count") from error


def _list_files(path: Path) -> tuple[Path, Path]:
    """Returns the path of a file of lengths, and that of the file beside it with the chunks that they belong to."""
    return path, path.with_name(f"{path.name}.chunks.npy")


def _list_chunks(manifest: Manifest) -> npt.NDArray[np.void]:
    """Returns the key of each chunk, and its number of samples, as a structured array."""
    chunks = np.empty(manifest.chunks, _CHUNK)
    chunks["key"] = np.ascontiguousarray(manifest.chunk_keys).view("V16").reshape(-1)
    chunks["samples"] = manifest.chunk_samples
    return chunks


def _fill_in(lengths: npt.NDArray[np.int32], manifest: Manifest, path: Path, resume_from: str) -> npt.NDArray[np.bool_]:
    """Copies lengths of chunks from the file at `path` into `lengths`; returns which were copied: bool, (samples,).

    Raises:
        ConfigError: the file is missing, or was not written by `measure_lengths`. The error names `resume_from`.
    """
    try:
        before, chunks = map(map_npy, _list_files(path))
        is_own = (before.ndim, before.dtype, chunks.ndim, chunks.dtype) == (1, lengths.dtype, 1, _CHUNK)
        if not is_own or (chunks["samples"] < 0).any() or chunks["samples"].sum() != len(before):
            raise ValueError(f"{before.dtype} of shape {before.shape}, of chunks {chunks.dtype} {chunks.shape}")
    except (OSError, ValueError) as error:
        message = f"resume_from={resume_from!r} was not written by measure_lengths(): {error}"
        raise ConfigError(message, field="resume_from") from error
    begins = np.cumsum(chunks["samples"]) - chunks["samples"]
    starts = dict(zip(chunks.tolist(), begins.tolist(), strict=True))
    found = np.zeros(len(lengths), np.bool_)
    bounds = pairwise(manifest.chunk_first.tolist())
    for chunk, (first, stop) in zip(_list_chunks(manifest).tolist(), bounds, strict=True):
        if (start := starts.get(chunk)) is not None:
            lengths[first:stop] = before[start : start + stop - first]
            found[first:stop] = True
    return found


def _write(path: Path, lengths: npt.NDArray[np.int32], chunks: npt.NDArray[np.void]) -> None:
    """Writes a file of lengths, and the chunks that they belong to beside it, each file whole or not at all."""
    for target, column in zip(_list_files(path), (lengths, chunks), strict=True):
        place = _touch_beside(target)
        try:
            np.save(place, column)
            os.replace(place, target)
        finally:
            place.unlink(missing_ok=True)


def _touch_beside(path: Path) -> Path:
    """Makes an empty file beside `path`, and their folder if it is missing; returns the path of the new file.

    Raises:
        ConfigError: the file cannot be made.
    """
    place = path.with_name(f".{path.name}.{secrets.token_hex(4)}.npy")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    except OSError as error:
        raise ConfigError(f"path={str(path)!r} cannot be written: {error.strerror}", field="path") from error
    return place
