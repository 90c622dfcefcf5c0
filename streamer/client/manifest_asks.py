"""Asks the engine for one or many manifests."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from streamer.client.pending_requests import Ask
from streamer.errors import ManifestError
from streamer.wire.messages import GetManifest, IndexProgress, ManifestReady, Message
from streamer.wire.store_options import StoreOptions


class ManifestAsk(NamedTuple):
    """One request for a manifest.

    Attributes:
        request: the manifest that is asked for; `request.request` and `request.options` are filled in later.
        progress: called while the manifest is built.
        on_note: called with each line about objects that were left out.
    """

    request: GetManifest
    progress: Callable[[IndexProgress], None] | None = None
    on_note: Callable[[str], None] | None = None

    def with_options(self, options: StoreOptions) -> Ask:
        """Returns the request as it is sent: with the options, and the number that it gets."""
        return Ask(partial(_number, self.request, options), self.progress)

    def take_answer(self, answer: ManifestReady, root: Path) -> Path:
        """Passes its notes on; returns the manifest's folder.

        Args:
            answer: answer of the engine.
            root: the cache folder as this process sees it.

        Raises:
            ManifestError: this process does not see the folder.
        """
        if self.on_note is not None:
            for note in answer.notes:
                self.on_note(note)
        folder = root / "manifests" / answer.digest
        if not folder.is_dir():
            raise ManifestError(
                f"the engine has the manifest {answer.digest}, but {folder} is not visible to this process; "
                "mount the cache folder here and set STREAMER_CACHE_DIR",
                path=str(folder),
            )
        return folder


def _number(request: GetManifest, options: StoreOptions, number: int) -> Message:
    return replace(request, request=number, options=options)
