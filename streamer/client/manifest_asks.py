"""Asks the engine for one or many manifests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from streamer.client.settings import ClientSettings
from streamer.errors import ManifestError
from streamer.wire.messages import GetManifest, IndexProgress, ManifestReady, Message


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


class Asker(Protocol):
    """The client of an engine."""

    @property
    def settings(self) -> ClientSettings:
        """The settings for reaching the engine."""
        ...

    def roots(self) -> list[Path]:
        """The cache folder as this process sees it, then the read-only layers."""
        ...

    def ask_each(
        self,
        requests: Iterable[Callable[[int], Message]],
        kind: type[ManifestReady],
        progress: Callable[[IndexProgress], None] | None = None,
    ) -> Iterator[ManifestReady]:
        """Yields the answers in order."""
        ...


def manifest_folders(client: Asker, asks: Iterable[ManifestAsk]) -> Iterator[Path]:
    """Yields each manifest's folder as this process sees it, in order; the engine finds or builds a few at a time.

    Raises:
        ManifestError, StoreError, ConfigError: the engine's error for the first manifest that is not yielded.
    """
    options = client.settings.encoded_options()
    asked: deque[ManifestAsk] = deque()

    def requests() -> Iterator[Callable[[int], Message]]:
        for ask in asks:
            asked.append(ask)
            yield partial(_numbered, ask.request, options)

    def progress(step: IndexProgress) -> None:
        if (announce := asked[0].progress) is not None:
            announce(step)

    root: Path | None = None
    for answer in client.ask_each(requests(), ManifestReady, progress):
        if (on_note := asked.popleft().on_note) is not None:
            for note in answer.notes:
                on_note(note)
        root = root or client.roots()[0]
        folder = root / "manifests" / answer.digest
        if not folder.is_dir():
            raise ManifestError(
                f"the engine has the manifest {answer.digest}, but {folder} is not visible to this process; "
                "mount the cache folder here and set STREAMER_CACHE_DIR",
                path=str(folder),
            )
        yield folder


def _numbered(request: GetManifest, options: bytes, number: int) -> Message:
    return replace(request, request=number, options=options)
