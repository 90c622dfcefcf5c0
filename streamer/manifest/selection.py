"""Selects samples of a manifest, and keeps their ordinals in a mapped file with a digest of its own: a selection.

`loader/members/` makes selections by a user's conditions, `batches/samples/opened.py` opens them in every process that
reads samples, and `tools/audit_states.py` to audit a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fnmatch import translate
from functools import cached_property, partial, reduce
from hashlib import blake2b
from pathlib import Path
from re import compile as compile_pattern
from typing import Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.base.sorting import unique
from streamer.base.splitmix import GAMMA, fold, fold_each, mix
from streamer.errors import ConfigError, ManifestCorruptError, ManifestError
from streamer.manifest.arrow_ipc.reader import map_table
from streamer.manifest.chunking import hash_keys
from streamer.manifest.columns import encode_text
from streamer.manifest.condition import ColumnsOf, Condition
from streamer.manifest.kept import KeptFiles
from streamer.manifest.layout import selection_name
from streamer.manifest.table import Manifest

Int64Array = NDArray[np.int64]
# Samples that are tested together, which bounds the memory of selecting besides its result.
_BLOCK_SAMPLES = 1 << 20


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions for samples, all of which a selected sample meets; None does not restrict.

    Attributes:
        keys: glob patterns of the path below the url, of which one must match (samples that are whole objects only).
        labels: class numbers (-1 for samples without a class) or names (samples that are whole objects only).
        sizes: least and greatest stored length in bytes, both inclusive (not for recoded datasets, whose samples are
            made when their chunk is fetched). None leaves a side open.
        indices: ordinals, in any order. Repeated ones count once.
        fraction: part `[start, stop)` of 0..1 by a hash of each sample: (0, 0.9) and (0.9, 1) together have every
            sample once, and a sample stays on its side when the dataset grows.
        seed: seed of the hash for `fraction`. Another one gives another split.
        condition: condition on columns, see `manifest.condition`.
    """

    keys: Sequence[str] | None = None
    labels: Sequence[int | str] | None = None
    sizes: tuple[int | None, int | None] | None = None
    indices: Iterable[int] | None = None
    fraction: tuple[float, float] | None = None
    seed: int = 0
    condition: str | None = None


class Selection:
    """A selection: its samples 0..n'-1 are some of the manifest's, in the manifest's order. Immutable.

    Attributes:
        manifest: the manifest that it selects from.
        ordinals: int64, shape (n',), ascending: ordinal in the manifest of each sample.
        digest: 32 hex characters, of the manifest's digest and the ordinals.
        path: the mapped file: next to the manifest's folder, or in the fallback folder.
    """

    def __init__(self, manifest: Manifest, ordinals: Int64Array, digest: str, path: Path) -> None:
        self.manifest = manifest
        self.ordinals = ordinals
        self.digest = digest
        self.path = path

    @classmethod
    def create(
        cls, manifest: Manifest, where: Where, fallback_dir: Path | None = None, columns: ColumnsOf | None = None
    ) -> Self:
        """Selects the samples that meet all conditions, and writes the file of `from_ordinals`.

        Args:
            manifest: the manifest to select from.
            where: the conditions.
            fallback_dir: the same as for `from_ordinals`.
            columns: returns columns of the manifest's samples; required for `where.condition`, else None.

        Raises:
            ConfigError: a condition is invalid, or no sample meets all.
            ManifestError: the file cannot be written.
        """
        ordinals = _select(manifest, where, columns)
        if not len(ordinals):
            raise ConfigError(f"the selection has none of the {manifest.samples} samples: {where}", field="select")
        return cls.from_ordinals(manifest, ordinals, fallback_dir)

    @classmethod
    def from_ordinals(cls, manifest: Manifest, ordinals: Int64Array, fallback_dir: Path | None = None) -> Self:
        """Selects these samples, and writes `<manifest>.<digest>.arrows` next to the manifest's folder.

        A file that is there already is opened instead.

        Args:
            manifest: the manifest to select from.
            ordinals: int64, shape (n',), strictly ascending, within 0..n-1, not empty.
            fallback_dir: folder where the file is written if that of the manifests is read-only for this process. None
                means that there is no other folder.

        Raises:
            ConfigError: the ordinals are not like that.
            ManifestError: the file cannot be written.
        """
        ordinals = np.ascontiguousarray(ordinals, np.int64)
        if not _ascends(ordinals, manifest.samples):
            raise ConfigError(
                f"a selection needs ascending ordinals of the {manifest.samples} samples, at least one; "
                f"got {len(ordinals)} others",
                field="ordinals",
            )
        digest = _digest(manifest, ordinals)
        kept = KeptFiles(manifest.path.parent, fallback_dir)
        name = selection_name(manifest.digest, digest)

        def check_ordinals(path: Path) -> Path:
            if not np.array_equal(cls.open(manifest, digest, path.parent).ordinals, ordinals):
                raise ManifestCorruptError(f"{path}: its ordinals do not have digest {digest}", path=str(path))
            return path

        path = kept.open(name, check_ordinals)
        if path is None:
            # No lock is held, because writing takes less time than waiting for another process.
            path = kept.write(name, partial(_write, ordinals=ordinals))
        return cls.open(manifest, digest, path.parent)

    @classmethod
    def open(cls, manifest: Manifest, digest: str, folder: Path | None = None, *, verify: bool = False) -> Self:
        """Maps a selection that was created before.

        Args:
            manifest: the manifest that it selects from.
            digest: digest of the selection.
            folder: folder with its file. None means the folder in which the manifest's own folder is.
            verify: whether to compare the ordinals with the digest.

        Raises:
            ManifestError: there is no file for that digest.
            ManifestCorruptError: the file is malformed, or its ordinals do not have that digest (`verify`).
        """
        path = (folder or manifest.path.parent) / selection_name(manifest.digest, digest)
        if not path.is_file():
            raise ManifestError(f"no selection {digest} at {path}", path=str(path))
        ordinals = np.asarray(map_table(path, {"ordinal": "int64"})["ordinal"]).view(np.int64)
        if verify and (_digest(manifest, ordinals) != digest or not _ascends(ordinals, manifest.samples)):
            raise ManifestCorruptError(f"{path}: its ordinals do not have digest {digest}", path=str(path))
        return cls(manifest, ordinals, digest, path)

    def __repr__(self) -> str:
        return f"Selection({self.digest[:8]}, {self.samples} of {self.manifest.samples} samples)"

    def __reduce__(self) -> tuple[Callable[..., Selection], tuple[Manifest, str, Path]]:
        # A worker maps the same file.
        return type(self).open, (self.manifest, self.digest, self.path.parent)

    @property
    def samples(self) -> int:
        """Number of samples, n'."""
        return len(self.ordinals)

    @cached_property
    def chunk_samples(self) -> Int64Array:
        """Number of selected samples of each chunk of the manifest: int64, shape (M,)."""
        edges = np.searchsorted(self.ordinals, self.manifest.chunk_first)
        return np.diff(edges).astype(np.int64)

    def to_base(self, ordinals: Int64Array) -> Int64Array:
        """Returns the ordinals in the manifest of samples of this selection: int64, same shape."""
        return self.ordinals[ordinals]

    def number(self, ordinal: int) -> int:
        """Returns the number in this selection of one of its samples, from the sample's ordinal in the manifest."""
        return int(np.searchsorted(self.ordinals, ordinal))


def _write(path: Path, ordinals: Int64Array) -> None:
    # Imported here: processes that read a selection do not need nanoarrow (6 ms of a start, 2026-11-22).
    from streamer.manifest.arrow_ipc.writer import write_table

    write_table(path, {"ordinal": ordinals})


def _select(manifest: Manifest, where: Where, columns: ColumnsOf | None) -> Int64Array:
    """Returns the ordinals of the samples that meet all conditions, ascending; raises ConfigError as `create`."""
    if where.indices is None:
        candidates = np.arange(manifest.samples, dtype=np.int64)
    else:
        candidates = unique(np.fromiter(where.indices, np.int64))
        if len(candidates) and not 0 <= candidates[0] <= candidates[-1] < manifest.samples:
            raise ConfigError(
                f"indices {candidates[0]}..{candidates[-1]} of {manifest.samples} samples", field="indices"
            )
    # Cheap tests come first.
    tests: list[_Test] = []
    if where.labels is not None:
        tests.append(_label_test(manifest, where.labels))
    if where.sizes is not None:
        tests.append(_size_test(manifest, where.sizes))
    if where.fraction is not None:
        tests.append(_fraction_test(manifest, where.fraction, where.seed))
    if where.condition is not None:
        assert columns is not None, "a condition needs columns"
        tests.append(Condition(where.condition).test(columns, manifest.samples))
    if where.keys is not None:
        tests.append(_key_test(manifest, where.keys))
    if not tests:
        return candidates
    blocks = range(0, len(candidates), _BLOCK_SAMPLES)
    parts = (candidates[start : start + _BLOCK_SAMPLES] for start in blocks)
    kept = [reduce(lambda left, test: left[test(left)], tests, part) for part in parts]
    return np.concatenate([np.empty(0, np.int64), *kept])


# Returns whether each of the samples with these ordinals, which ascend, meets a condition.
_Test = Callable[[Int64Array], NDArray[np.bool_]]


def _label_test(manifest: Manifest, labels: Sequence[int | str]) -> _Test:
    """Returns the test for `Where.labels`; raises ConfigError for unknown classes, or without whole objects."""
    _whole_objects_only(manifest, "labels")
    numbers = {name: number for number, name in enumerate(manifest.classes)}
    unknown = [
        label
        for label in labels
        if (label not in numbers if isinstance(label, str) else not -1 <= label < len(manifest.classes))
    ]
    if unknown:
        raise ConfigError(f"labels={unknown!r} are not among the {len(manifest.classes)} classes", field="labels")
    wanted = [numbers[label] if isinstance(label, str) else label for label in labels]
    return lambda ordinals: np.isin(manifest.labels[ordinals], wanted)


def _size_test(manifest: Manifest, sizes: tuple[int | None, int | None]) -> _Test:
    """Returns the test for `Where.sizes`; raises ConfigError for a recoded dataset, which has no such lengths."""
    least, most = sizes
    if manifest.recoded:
        raise ConfigError(
            f"min_bytes= and max_bytes= need the stored sizes of samples, which are not known in format "
            f"{manifest.format!r}: its samples are parts of blocks that are decoded as a whole; select by where=, "
            "fraction or indices, which may be counted once: lengths = streamer.measure_lengths(dataset, function, "
            'path="sizes.npy"), then select(indices=lengths <= limit)',
            field="max_bytes" if least is None else "min_bytes",
        )

    def test(ordinals: Int64Array) -> NDArray[np.bool_]:
        _, start, stop = manifest.locate(ordinals)
        length = stop - start
        fits = np.ones(len(length), bool)
        if least is not None:
            fits &= length >= least
        if most is not None:
            fits &= length <= most
        return fits

    return test


def _fraction_test(manifest: Manifest, fraction: object, seed: int) -> _Test:
    """Returns the test for `Where.fraction`; raises ConfigError as `check_fraction`."""
    lower, upper = check_fraction(fraction)

    def test(ordinals: Int64Array) -> NDArray[np.bool_]:
        # A sample's identity is hashed, not its ordinal: the path of a raw file, or the place in its chunk.
        if manifest.whole_objects:
            keys = [encode_text(manifest.name(i).object_key) for i in ordinals.tolist()]
            base = hash_keys(keys)
            place = np.zeros(len(keys), np.uint64)
        else:
            chunk, _, _ = manifest.locate(ordinals)
            base = manifest.chunk_words[chunk]
            place = (ordinals - manifest.chunk_first[chunk]).astype(np.uint64)
        hashed = mix(fold_each(fold(seed), base) + place + GAMMA)
        # A float has 53 bits exactly.
        share = (hashed >> np.uint64(11)) / float(1 << 53)
        return (share >= lower) & (share < upper)

    return test


def check_fraction(fraction: object) -> tuple[float, float]:
    """Returns the two ends of a fraction that a user has given.

    Raises:
        ConfigError: not a pair of numbers with 0 <= start < stop <= 1.
    """
    pair = fraction if isinstance(fraction, tuple | list) and len(fraction) == 2 else (None,)
    if not all(isinstance(end, int | float) for end in pair):
        raise ConfigError(f"fraction={fraction!r} is not a pair as (0, 0.9)", field="fraction")
    lower, upper = map(float, pair)
    if not 0 <= lower < upper <= 1:
        raise ConfigError(f"fraction={fraction} is not 0 <= start < stop <= 1", field="fraction")
    return lower, upper


def _key_test(manifest: Manifest, patterns: Sequence[str]) -> _Test:
    """Returns the test for `Where.keys`; no pattern matches nothing. Raises ConfigError without whole objects."""
    _whole_objects_only(manifest, "keys")
    matches = compile_pattern("|".join(map(translate, patterns))).match if patterns else None

    def test(ordinals: Int64Array) -> NDArray[np.bool_]:
        if matches is None:
            return np.zeros(len(ordinals), bool)
        names = (manifest.name(i).object_key for i in ordinals.tolist())
        return np.fromiter((matches(n) is not None for n in names), bool, len(ordinals))

    return test


def _whole_objects_only(manifest: Manifest, field: str) -> None:
    """Raises ConfigError if samples are inside containers, whose names the manifest does not have."""
    if not manifest.whole_objects:
        instead = "indices, where= or fraction" if manifest.recoded else "indices, sizes or fraction"
        raise ConfigError(
            f"{field}= needs names, which format {manifest.format!r} keeps inside its containers; select by {instead}",
            field=field,
        )


def _digest(manifest: Manifest, ordinals: Int64Array) -> str:
    state = blake2b(manifest.digest.encode(), digest_size=16, person=b"streamer-select1")
    state.update(np.ascontiguousarray(ordinals, "<i8").tobytes())
    return state.hexdigest()


def _ascends(ordinals: Int64Array, samples: int) -> bool:
    rises = bool((np.diff(ordinals) > 0).all())
    return rises and len(ordinals) > 0 and ordinals[0] >= 0 and bool(ordinals[-1] < samples)
