"""Finds the tokens of each document before it is read: from the format, from a file of numbers, or by an estimate.

`batches/samples/opened.py` uses `DocumentCosts` to plan rows (`packing=`) and to make batches level (`balance=`).
`loader/measure.py` goes on with a file of numbers by `map_npy`.
"""

from __future__ import annotations

import os
import re
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from streamer.batches.rows.options import Estimate
from streamer.errors import ConfigError, ManifestCorruptError
from streamer.formats.registry import restore_format
from streamer.manifest.kept import DIGEST, KeptFiles, hash_question
from streamer.manifest.table import Manifest

Integers = npt.NDArray[np.int64]

# The kind of a field of integers in one dimension: "<u2[]" for any length, "<u2[2048]" for a fixed one.
_NUMBERS = re.compile(r"[<>|][iu](\d+)\[(\d*)\]")
# Numbers that are hashed at once: 8 MB of int64.
_BLOCK = 1 << 20
_MOST = np.iinfo(np.int64).max


class DocumentCosts:
    """The tokens of the samples of a manifest.

    Args:
        manifest: the manifest of the dataset.
        measured: path of an .npy file with a whole number for each sample, an estimate, or None if the format knows the
            numbers.
        fields: names of the fields with one value for each token, or () if the user does not name them.

    Raises:
        ConfigError: nothing says how many tokens a sample has, the file is of another dataset, or the bytes of samples
            are not known for an estimate.
    """

    def __init__(self, manifest: Manifest, measured: str | Estimate | None, fields: tuple[str, ...] = ()) -> None:
        self._manifest = manifest
        self._measured = measured
        self._column = _map_file(measured, manifest) if isinstance(measured, str) else None
        self._token_bytes = 0.0
        self._constant = 0
        if isinstance(measured, Estimate):
            # Chunks of Parquet, Arrow and compressed files are made when they are fetched.
            if manifest.recoded:
                raise ConfigError(
                    f"Estimate: how many bytes a sample of these files ({manifest.format}, columns or compressed) has "
                    "is not known before it is read: count the tokens once, "
                    'streamer.measure_lengths(dataset, function, path="costs.npy")',
                    field="lengths",
                )
            self._token_bytes = measured.bytes_per_token
        elif measured is None:
            self._token_bytes, self._constant = _find_known(manifest, fields)

    def __repr__(self) -> str:
        known = f"{self._constant} tokens" if self._constant else f"{self._token_bytes} bytes a token"
        return f"DocumentCosts({self._measured or known})"

    @property
    def identity(self) -> str:
        """Text that a state keeps to know the costs again: a digest of the file's numbers, or words for an estimate.

        It is "" where the manifest decides the costs. For many numbers the digest is kept in a file beside the
        manifest.
        """
        if isinstance(self._measured, Estimate):
            return self._measured.identity
        if self._column is None or self._measured is None:
            return ""
        if len(self._column) <= _BLOCK:
            return _digest(self._column)
        # The digest of 1e9 values takes 10 s: it is kept beside the manifest as long as their file stays as it is.
        file = os.stat(self._measured)
        facts = f"{self._measured} {file.st_dev} {file.st_ino} {file.st_size} {file.st_mtime_ns}".encode()
        kept = KeptFiles(self._manifest.path.parent)
        name = f"{self._manifest.digest}.{hash_question(facts)}.costs"
        found = kept.open(name, _read_digest)
        if found is None:
            found = _digest(self._column)
            if kept.is_writable:
                kept.write(name, partial(Path.write_text, data=found))
        return found

    def count_tokens(self, ordinals: Integers) -> Integers:
        """Returns the tokens of samples, by their ordinals in the manifest: int64 (N,).

        A negative number of a file is kept: such a sample could not be read, and is in no row.
        """
        if self._column is not None:
            counts = self._column[ordinals]
            # Unsigned numbers of 2^63 and more would become negative. The table of rows refuses the largest number.
            counts = np.minimum(counts, np.uint64(_MOST)) if counts.dtype.kind == "u" else counts
            return counts.astype(np.int64)
        if self._constant:
            return np.full(len(ordinals), self._constant, np.int64)
        _, start, stop = self._manifest.locate(ordinals)
        tokens: Integers = ((stop - start) // self._token_bytes).astype(np.int64)
        # An estimate gives every document with bytes at least one token, so that it is in a row.
        return np.maximum(tokens, stop > start) if isinstance(self._measured, Estimate) else tokens


def _digest(column: npt.NDArray[np.integer]) -> str:
    digest = blake2b(digest_size=16)
    for first in range(0, len(column), _BLOCK):
        digest.update(np.ascontiguousarray(column[first : first + _BLOCK], np.int64).data)
    return digest.hexdigest()


def _read_digest(path: Path) -> str:
    text = path.read_text(errors="replace")
    if DIGEST.fullmatch(text) is None:
        raise ManifestCorruptError(f"{path} has {text!r:.50}, not a digest", path=str(path))
    return text


def _find_known(manifest: Manifest, fields: tuple[str, ...]) -> tuple[int, int]:
    """Returns what the format knows: bytes of a token and 0, or 0 and the tokens that every sample has.

    Raises:
        ConfigError: the format knows neither.
    """
    kinds = {spec.name: _NUMBERS.fullmatch(spec.kind) for spec in manifest.facts.fields}
    named = {name: kinds.get(name) for name in fields} or kinds
    found = [match for match in named.values() if match is not None]
    if found and found[0][2]:
        return 0, int(found[0][2])
    if found and not manifest.recoded and (token_bytes := restore_format(manifest).find_token_bytes(manifest.facts)):
        return token_bytes, 0
    raise ConfigError(
        f"how many tokens a sample of format {manifest.format!r} has is not known before it is read; measure it once: "
        'streamer.measure_lengths(dataset, function, path="costs.npy"), then Packing(..., lengths="costs.npy"), or '
        'without packing Balance(..., lengths="costs.npy")',
        field="lengths",
    )


def map_npy(path: Path) -> npt.NDArray[Any]:
    """Maps the array of an .npy file.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not an .npy file (but an .npz), is cut off, or has Python objects.
    """
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError):
        raise
    except Exception as error:  # the header is a Python literal, for which the parser has errors of its own
        raise ValueError(f"its header cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(found, np.ndarray):
        found.close()
        raise ValueError("it is an .npz file of several arrays")
    return found


def _map_file(path: str, manifest: Manifest) -> npt.NDArray[np.integer]:
    """Maps the numbers of an .npy file, one for each sample of the manifest; raises a ConfigError if it has others."""
    try:
        column = map_npy(Path(path))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"lengths={path!r} is not an .npy file that can be read: {error}; write one array with numpy.save, or "
            "measure again",
            field="lengths",
        ) from error
    if column.dtype.kind not in "iu" or column.shape != (manifest.samples,):
        raise ConfigError(
            f"lengths={path!r} has {column.dtype} {column.shape}; a whole number for each of the {manifest.samples} "
            "samples is expected: it was measured on other data, measure again",
            field="lengths",
        )
    return column
