"""The datasets of a stream as one process has opened them: a dataset alone is its only member, a mix has several."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.annotations.join import JoinRules
from streamer.loader.samples.maker import SampleRules
from streamer.manifest.reader_lock import open_held
from streamer.manifest.table import Manifest

if TYPE_CHECKING:
    from streamer.manifest.selection import Selection

Integers = npt.NDArray[np.int64]

# Samples that are located at once: 50 MB.
_BLOCK = 1 << 20


class OpenedDataset:
    """The selected samples of a manifest, or all, numbered through."""

    def __init__(self, manifest: Manifest, selection: Selection | None, joined: JoinRules | None = None) -> None:
        self.manifest = manifest
        self.selection = selection
        self.joined = joined

    @classmethod
    def open(cls, path: Path, selection_file: tuple[str, Path] | None) -> Self:
        """Opens a manifest's folder, and a selection by its digest and the folder of its file; None: all samples.

        Raises:
            ManifestError: there is no manifest.
        """
        manifest = open_held(path)
        return cls(manifest, None if selection_file is None else _open_selection(manifest, *selection_file))

    def __repr__(self) -> str:
        return f"OpenedDataset({self.manifest!r}, {self.selection!r})"

    @property
    def selection_file(self) -> tuple[str, Path] | None:
        """The digest of the selection, and the folder of its file; None: all samples."""
        return None if self.selection is None else (self.selection.digest, self.selection.path.parent)

    @property
    def samples(self) -> int:
        """Number of selected samples."""
        return self.manifest.samples if self.selection is None else self.selection.samples

    @property
    def digest(self) -> str:
        """Identity of the selected samples."""
        return self.manifest.digest if self.selection is None else self.selection.digest

    @property
    def chunk_samples(self) -> Integers:
        """(M,) selected samples per chunk."""
        return self.manifest.chunk_samples if self.selection is None else self.selection.chunk_samples

    @cached_property
    def chunk_first(self) -> Integers:
        """(M+1,) selected samples before each chunk."""
        return self.manifest.chunk_first if self.selection is None else np.append(0, np.cumsum(self.chunk_samples))

    @property
    def stored_bytes(self) -> int:
        """The bytes of the selected samples, by their share of all."""
        return int(self.manifest.chunk_local_bytes.sum() * (self.samples / max(1, self.manifest.samples)))

    @cached_property
    def exact_bytes(self) -> int:
        """The bytes of the selected samples, in 0.1 us each; if recoded (without offsets), by their share of all."""
        if self.selection is None or self.manifest.recoded:
            return self.stored_bytes
        blocks = (self.selection.ordinals[first : first + _BLOCK] for first in range(0, self.samples, _BLOCK))
        located = (self.manifest.locate(block) for block in blocks)
        return sum(int((stop - start).sum()) for _, start, stop in located)

    def number(self, ordinal: int) -> int:
        """Returns the number in the selection, which `dataset[i]` takes, of an ordinal in the manifest."""
        return ordinal if self.selection is None else self.selection.number(ordinal)

    def to_manifest(self, ordinals: Integers) -> Integers:
        """Ordinals in the selection -> ordinals in the manifest."""
        return ordinals if self.selection is None else self.selection.to_base(ordinals)


class MemberRecipe(msgspec.Struct, frozen=True, kw_only=True):
    """All that a worker process needs to make the samples of one member.

    Attributes:
        manifest_path: the manifest's folder.
        selection: digest of the selection, and the folder of its file; None: all samples.
        rules: of making samples.
    """

    manifest_path: Path
    selection: tuple[str, Path] | None
    rules: SampleRules

    def open(self) -> OpenedDataset:
        """Opens the manifest in this process.

        Raises:
            ManifestError: there is none.
        """
        return OpenedDataset.open(self.manifest_path, self.selection)


class Members:
    """The members in their order. The chunks of each are numbered after those of the members before it."""

    def __init__(self, members: Sequence[OpenedDataset]) -> None:
        self.each = list(members)

    def __repr__(self) -> str:
        return f"Members({self.each})"

    @property
    def samples(self) -> list[int]:
        """Number of selected samples of each."""
        return [member.samples for member in self.each]

    @cached_property
    def first_chunks(self) -> list[int]:
        """(members + 1,) number of the first chunk of each."""
        counts = [member.manifest.chunks for member in self.each]
        return [0, *np.cumsum(counts).tolist()]

    @cached_property
    def chunk_bytes(self) -> Integers:
        """Bytes of each chunk, over all members."""
        return np.concatenate([member.manifest.chunk_local_bytes for member in self.each])


def _open_selection(manifest: Manifest, digest: str, folder: Path) -> Selection:
    # Imported here: it imports the manifest's builder and asyncio, 40 ms of a worker's start (2026-11-20).
    from streamer.manifest.selection import Selection

    return Selection.open(manifest, digest, folder)
