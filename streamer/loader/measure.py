"""Counts the tokens of every document once, so that rows can be planned before they are read."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from streamer.batches import checks
from streamer.batches.samples.seeding import UNSEEDED
from streamer.decode.transforms import make_transform, takes
from streamer.errors import ConfigError
from streamer.executors.runner import run_all, runner
from streamer.loader.dataloader import StreamingDataLoader
from streamer.loader.dataset import StreamingDataset
from streamer.loader.dataset_scan import check_same_data, make_scan_options
from streamer.loader.members.member import DatasetMember
from streamer.loader.options.dataset_options import DatasetOptions
from streamer.manifest.selection import Where
from streamer.manifest.table import Manifest
from streamer.removed import check_arguments, warn_of

logger = logging.getLogger(__name__)

Count = str | Callable[[object], int]
Integers = npt.NDArray[np.int64]
_Counted = tuple[str, Integers, npt.NDArray[np.int32]]

# Number of samples that a worker counts at a time.
_BATCH = 1024
# Number of runs of chunks for each task that an executor runs at a time: a process that is late has few left.
_RUNS = 4


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

    Reads the whole dataset once through the cache, in one process and its workers, or in tasks. With on_error="skip" a
    sample that cannot be made gets -1, and is in no row. The global random generators are not seeded for the transform:
    a length must not depend on them.

    Args:
        dataset: Dataset of which all samples are counted, with the transform that training uses; `packing` and
            `balance` do not count.
        count: Name of a field, whose length counts, or a function of what the transform returns.
        path: Path of the file, .npy: int32, one number for each sample, by the numbers that `dataset[i]` takes.
        num_workers: Number of workers, as of `StreamingDataLoader`.
        resume_from: File of an earlier call with the same count and transform, which may be that of `path`: only the
            chunks of samples that it does not have are read. Keeps `PATH.chunks.npy` beside it.
        executor: Executor of tasks, as "processes:8", "dask:tcp://scheduler:8786", "ray:auto" or an object. Each
            task reads a run of chunks through the cache of its machine. By default this process.
        on_progress: Function that is called now and then with the number of samples that were read, and in all.

    Returns:
        The numbers.

    Raises:
        ConfigError: a selection, whose samples have no numbers in the whole; no count, or no such field; `path`
            cannot be written; or `resume_from` was not written here.
        ManifestError: a task has found other objects below the url.
    """
    member = dataset._member
    target = Path(str(checks.path("path", path)))
    if target.suffix != ".npy":
        raise ConfigError(f"path={str(target)!r}: give the path of an .npy file", field="path")
    # A path that cannot be written is an error before anything is read.
    _touch_beside(target).unlink()
    if member.choices:
        raise ConfigError(
            "measure_lengths() counts the samples of a whole dataset: call it before select(); a selection with "
            "packing= uses the same file",
            field="dataset",
        )
    counter = _make_counter(member.options.transform, count)
    options = replace(make_scan_options(member.options), transform=counter)
    whole = member.part(None, options)
    costs = np.full(whole.open().samples, -1, np.int32)
    manifest = whole.open().manifest
    missing = None if resume_from is None else np.flatnonzero(~_fill_in(costs, manifest, str(resume_from)))
    done = 0
    total = whole.open().samples if missing is None else len(missing)
    if total:
        count_part = partial(_count_part, num_workers=num_workers)
        make_parts = partial(_make_parts, dataset, whole, options, missing)
        batches = map(count_part, make_parts(1)) if executor is None else _run_tasks(executor, count_part, make_parts)
        for digest, numbers, found in chain.from_iterable(batches):
            check_same_data(options.place, found=(digest,), expected=(manifest.digest,))
            costs[numbers] = found
            done += len(numbers)
            on_progress(done, total)
        on_progress(total, total)
    _write(target, costs)
    _write(_chunks_of(target), _facts(manifest))
    logger.info("%s: %d tokens of %d samples", target, int(costs[costs > 0].sum(dtype=np.int64)), len(costs))
    return costs


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


def _run_tasks(
    executor: str | Executor,
    count_part: Callable[[StreamingDataset], Iterable[_Counted]],
    make_parts: Callable[[int], Iterator[StreamingDataset]],
) -> Iterator[Iterable[_Counted]]:
    """Yields what each task has counted."""
    with runner(executor) as running:
        yield from run_all(running, partial(_count_whole, count_part), make_parts(_RUNS * running.most_tasks))


def _count_whole(
    count_part: Callable[[StreamingDataset], Iterable[_Counted]], dataset: StreamingDataset
) -> list[_Counted]:
    return list(count_part(dataset))


def _make_parts(
    dataset: StreamingDataset, whole: DatasetMember, options: DatasetOptions, numbers: Integers | None, limit: int
) -> Iterator[StreamingDataset]:
    """Cuts samples into at most `limit` parts, at the borders of chunks.

    Args:
        dataset: Dataset as the user has it.
        whole: DatasetMember with all of its samples.
        options: Options of the parts.
        numbers: Numbers of the samples, ascending, or None for all.
        limit: Largest number of parts.
    """
    manifest = whole.open().manifest
    if numbers is None and limit == 1:
        # A selection would take eight bytes for each sample.
        yield StreamingDataset._from_member(whole.part(None, options))
        return
    bounds = np.linspace(0, manifest.chunks, min(manifest.chunks, limit) + 1).astype(np.int64)
    for first, stop in pairwise(manifest.chunk_first[bounds].tolist()):
        own = np.arange(first, stop) if numbers is None else numbers[slice(*np.searchsorted(numbers, [first, stop]))]
        if len(own):
            yield StreamingDataset._from_member(whole.part((own, Where()), options))


def _count_part(dataset: StreamingDataset, *, num_workers: int) -> Iterator[_Counted]:
    """Counts the tokens of a dataset's samples, and closes it.

    Yields:
        Digest of the manifest, samples that could be made, and their tokens, for each batch.
    """
    try:
        with StreamingDataLoader(dataset, _BATCH, num_workers) as loader:
            for number, found in enumerate(loader):
                codes = loader._prepare().ordinals(0, number)
                # Samples that were replaced are those that could not be made.
                made = ~loader.repeated
                yield dataset._member.open().manifest.digest, codes[made], np.asarray(found, np.int32)[made]
    finally:
        dataset.close()


def _make_counter(transform: object, count: Count) -> Callable[..., int]:
    """Returns a transform whose result is the number of tokens; with `rng` if the user's takes it, which costs time."""
    if not isinstance(count, str) and not callable(count):
        raise ConfigError(f"count={count!r} is neither the name of a field nor a function", field="count")
    own = make_transform(transform)  # type: ignore[arg-type]
    given: dict[str, object] = {"out": {}} if takes(own, "out") else {}

    def count_tokens(sample: dict[str, object], **more: object) -> int:
        made: object = sample if own is None else own(sample, **given, **more)
        return checks.at_least("count", _length_of(made, count) if isinstance(count, str) else count(made), 0)

    def count_with_rng(sample: dict[str, object], rng: np.random.Generator) -> int:
        return count_tokens(sample, rng=rng)

    counter = count_with_rng if takes(own, "rng") else count_tokens
    setattr(counter, UNSEEDED, True)
    return counter


def _length_of(sample: object, name: str) -> int:
    """Returns the length of a field.

    Raises:
        ConfigError: the sample does not have it, or it has none.
    """
    fields = sample if isinstance(sample, Mapping) else {}
    if name not in fields:
        has = ", ".join(map(str, fields)) or f"none: it is of type {type(sample).__name__}"
        raise ConfigError(f"count={name!r} is not a field of the sample; its fields are {has}", field="count")
    try:
        return len(fields[name])
    except TypeError as error:
        raise ConfigError(
            f"count={name!r}: a value of type {type(fields[name]).__name__} has no length", field="count"
        ) from error


def _chunks_of(path: Path) -> Path:
    """Returns the path of the file that says which chunks the numbers of another one are of."""
    return path.with_name(f"{path.name}.chunks.npy")


def _facts(manifest: Manifest) -> npt.NDArray[np.void]:
    """Returns the key of each chunk, and its number of samples."""
    facts = np.empty(manifest.chunks, [("key", "V16"), ("samples", np.int64)])
    facts["key"] = np.ascontiguousarray(manifest.chunk_keys).view("V16").reshape(-1)
    facts["samples"] = manifest.chunk_samples
    return facts


def _fill_in(costs: npt.NDArray[np.int32], manifest: Manifest, known: str) -> npt.NDArray[np.bool_]:
    """Takes over the numbers of chunks that were measured before; returns the samples of those: (n,)."""
    try:
        before, facts = (np.load(path, allow_pickle=False) for path in (Path(known), _chunks_of(Path(known))))
        if facts["samples"].sum() != len(before):
            raise ValueError(f"{len(before)} numbers of {facts['samples'].sum()} samples")
    except (OSError, ValueError, IndexError) as error:
        raise ConfigError(
            f"resume_from={known!r} was not written by measure_lengths(): {error}", field="resume_from"
        ) from error
    starts = dict(zip(facts["key"].tolist(), (np.cumsum(facts["samples"]) - facts["samples"]).tolist(), strict=True))
    found = np.zeros(len(costs), np.bool_)
    ends = manifest.chunk_first.tolist()
    for key, (first, stop) in zip(_facts(manifest)["key"].tolist(), pairwise(ends), strict=True):
        if (start := starts.get(key)) is not None:
            costs[first:stop] = before[start : start + stop - first]
            found[first:stop] = True
    return found


def _write(path: Path, costs: npt.NDArray[np.generic]) -> None:
    """Writes the whole file or nothing."""
    place = _touch_beside(path)
    try:
        np.save(place, costs)
        os.replace(place, path)
    finally:
        place.unlink(missing_ok=True)


def _touch_beside(path: Path) -> Path:
    """Makes an empty file beside another one, and the folder of both.

    Raises:
        ConfigError: it cannot be made.
    """
    place = path.with_name(f".{path.name}.{secrets.token_hex(4)}.npy")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    except OSError as error:
        raise ConfigError(f"path={str(path)!r} cannot be written: {error.strerror}", field="path") from error
    return place
