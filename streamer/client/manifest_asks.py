"""Asks the engine for one or many manifests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

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


# `EngineClient.ask_each`, for manifests.
AskEach = Callable[
    [Iterable[Callable[[int], Message]], type[ManifestReady], Callable[[IndexProgress], None]], Iterator[ManifestReady]
]


def manifest_folders(
    asks: Iterable[ManifestAsk], options: bytes, ask_each: AskEach, roots: Callable[[], list[Path]]
) -> Iterator[Path]:
    """Yields each manifest's folder as this process sees it, in order; the engine finds or builds a few at a time.

    Args:
        asks: the requests.
        options: result of `ClientSettings.encoded_options`.
        ask_each: sends requests, and yields the answers in order.
        roots: returns the cache folder as this process sees it, then the read-only layers.

    Raises:
        ManifestError, StoreError, ConfigError: the engine's error for the first manifest that is not yielded.
    """
    asked: deque[ManifestAsk] = deque()

    def requests() -> Iterator[Callable[[int], Message]]:
        for ask in asks:
            asked.append(ask)
            yield partial(_numbered, ask.request, options)

    def progress(step: IndexProgress) -> None:
        if (announce := asked[0].progress) is not None:
            announce(step)

    root: Path | None = None
    for answer in ask_each(requests(), ManifestReady, progress):
        if (on_note := asked.popleft().on_note) is not None:
            for note in answer.notes:
                on_note(note)
        root = root or roots()[0]
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
