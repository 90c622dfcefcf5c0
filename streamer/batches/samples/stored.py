"""Reads samples with all their fields as they are stored: those of the dataset, of its annotations and of its joins.

The scans by which a pack reads a dataset use it (`loader/scan_reader.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streamer.annotations.join import Joiner
from streamer.batches.samples.cached_bytes import ChunkUnreadableError
from streamer.batches.samples.maker import (
    ByteSource,
    Integers,
    RowSource,
    SampleLocation,
    SampleRules,
    locate_samples,
    refuse_common_fields,
)
from streamer.decode.base import sample_errors
from streamer.decode.rule import StoredSample
from streamer.formats.base import SampleName
from streamer.formats.registry import open_format
from streamer.manifest.table import Manifest

_NO_NAME = SampleName()


class StoredReader:
    """Reads samples as they are stored. Used by one thread.

    Args:
        manifest: Manifest of the dataset.
        content: Source of the bytes.
        rules: Rules of the dataset. Only its annotations and the fields that are left out matter here.
        joins: Readers of the fields of other datasets, which do not decode them either.

    Raises:
        ConfigError: the format is not installed, or lacks an option of the manifest.
        ManifestVersionError: the dataset was indexed by another revision of the format.
        ManifestError, ManifestCorruptError: the table of annotations is missing, or malformed.
    """

    def __init__(
        self, manifest: Manifest, content: ByteSource, rules: SampleRules, joins: Sequence[RowSource] = ()
    ) -> None:
        self._manifest = manifest
        self._content = content
        self._leave_out = rules.leave_out
        self._joins = joins
        self._opener = open_format(manifest)
        self._joiner = None if rules.joined is None else Joiner(rules.joined, "auto")

    def __repr__(self) -> str:
        return f"StoredReader({self._manifest!r}, joins={len(self._joins)})"

    def begin(self, ordinals: Integers) -> list[SampleLocation]:
        """Returns the locations of samples, which `read` is called with next, and locates their rows in other datasets.

        Args:
            ordinals: Ordinals of the samples in the manifest.

        Raises:
            ChunkUnreadableError: A recoded chunk, which says itself where its samples are, is missing or wrong.
            StreamerError: another error of the source of the bytes.
        """
        columns = locate_samples(self._manifest, self._content, ordinals)
        for join in self._joins:
            join.begin(ordinals)
        return [SampleLocation(*row) for row in zip(*columns, strict=True)]

    def read(self, place: SampleLocation) -> StoredSample:
        """Reads one sample. If samples without annotations are left out of the selection, they are read without them.

        Raises:
            ChunkUnreadableError: Bytes are missing or wrong.
            DecodeError: The sample cannot be opened, lacks annotations that it must have, or has a field with the name
                of an annotation or of a field of a join.
            StreamerError: another error of the source of the bytes or of the format.
        """
        ordinal = place.ordinal
        content = self._content.read(place)
        where = f"sample {ordinal} of {self._manifest.extent_of(ordinal).object.url}"
        name = self._manifest.name(ordinal) if self._manifest.whole_objects else _NO_NAME
        with sample_errors(where, passed=ChunkUnreadableError):
            key, opened = self._opener.open(content, name)
            own = [field for field in opened if field.name not in self._leave_out]
            found: dict[str, object] = {field.name: field for field in own}
            if name.label >= 0:
                found.setdefault("label", name.label)
            if self._joiner is not None:
                # Samples without annotations that are left out are in no selection, and have none.
                annotations = self._joiner.fields(str(ordinal) if key is None else key, own) or ()
                found |= {field.name: field for field in annotations}
            for join in self._joins:
                found |= refuse_common_fields(found, join.values(ordinal, bytes), join.field_of)
        return StoredSample(
            ordinal=ordinal,
            where=where,
            key=name.object_key or key,
            fields=list(found.items()),
            is_file=bool(name.object_key),
        )


def find_steps(sizes: Integers, step_bytes: int, step_samples: int) -> Integers:
    """Cuts samples into steps, and returns the number of the step of each sample: int64 (n,), rising from 0.

    Args:
        sizes: (n,) bytes of each sample.
        step_bytes: bytes of a step, about.
        step_samples: largest number of samples of a step.
    """
    by_bytes = (np.cumsum(sizes) - sizes) // step_bytes
    by_count = np.arange(len(sizes)) // step_samples
    begins = np.append(False, (np.diff(by_bytes) > 0) | (np.diff(by_count) > 0))
    return np.cumsum(begins[: len(sizes)]).astype(np.int64)


def find_uses(chunks: Integers, steps: Integers) -> tuple[Integers, Integers, Integers]:
    """Returns the uses of chunks: chunk, first step and last step of each use, in the order of the first steps.

    Consecutive steps that use a chunk are one use of it. After a step that does not use the chunk, another use begins.

    Args:
        chunks: (n,) chunk that each sample needs.
        steps: (n,) step of each sample.
    """
    if not len(chunks):
        return chunks, steps, steps
    pairs = np.unique(np.stack([chunks, steps], axis=1), axis=0)
    chunk = pairs[:, 0]
    step = pairs[:, 1]
    begins = np.flatnonzero(np.append(True, (np.diff(chunk) > 0) | (np.diff(step) > 1)))
    last = step[np.append(begins[1:], len(step)) - 1]
    order = np.argsort(step[begins], kind="stable")
    return chunk[begins][order], step[begins][order], last[order]
