"""Holds the fetchers of an engine by storage options, for the urls that it may read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager

from streamer.config import FetchConfig
from streamer.engine.url_allowlist import UrlAllowlist
from streamer.fetch import Fetcher
from streamer.fetch.fetcher_set import FetcherSet, ignore_notice
from streamer.manifest.model import Chunk
from streamer.store import ObjectStore, open_store
from streamer.store.addresses.urls import Address


class Fetchers(FetcherSet):
    """Opens the fetchers of an engine, on its loop.

    Args:
        config: of each.
        allowlist: which urls are read, with which options.
        notify: called with the key of the options and a sentence, when a store has served nothing for a while.
    """

    def __init__(
        self, config: FetchConfig, allowlist: UrlAllowlist, notify: Callable[[str, str], None] = ignore_notice
    ) -> None:
        super().__init__(config, self._open_store, notify)
        self.allowlist = allowlist
        self._client = config.client

    def of_chunk(self, chunk: Chunk, options: Mapping[str, object]) -> AbstractAsyncContextManager[Fetcher]:
        """The fetcher for a chunk of a dataset with these options.

        Raises:
            AccessDeniedError: an object of the chunk is not served with them.
        """
        self.allowlist.check_chunk(chunk, options)
        return self.of(options)

    def _open_store(self, options: Mapping[str, object], url: Address) -> ObjectStore:
        return open_store(url, options, client=self._client, guarded=self.allowlist.guarded)
