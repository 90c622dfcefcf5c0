"""Reads the Hugging Face Hub: lists by its own library, and reads a file from the commit in which it last changed.

`store/__init__.py` opens it for urls with hf://. A branch moves, a commit does not: an object pinned to a commit stays
readable, and no read can return other bytes.

Source: Hugging Face, "Hub API Endpoints" (tree) and "Download files from the Hub" (resolve).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING
from urllib.parse import quote

from msgspec.structs import replace

from streamer.manifest.model import ObjectRecord
from streamer.store import versions
from streamer.store.base import Get, ObjectStore, StoreStatistics, Take
from streamer.store.fsspec_store import FsspecStore

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

# The Hub's storage without commits.
_BUCKETS = "hf://buckets"


class HubStore(FsspecStore):
    """Lists the Hub through fsspec, and reads files of commits by https. The Hub's buckets are read through fsspec.

    Args:
        root: root of the urls.
        protocol: name of fsspec's filesystem, "hf".
        options: options of HfFileSystem. A token there takes precedence over HF_TOKEN and the user's sign-in.
        open_web: opens the store of a web server, given its url and storage options.
    """

    def __init__(
        self, root: str, protocol: str, options: Mapping[str, object], *, open_web: Callable[..., ObjectStore]
    ) -> None:
        # This option makes a listing name the commit in which each file last changed.
        super().__init__(root, protocol, {"expand_info": True, **options})
        self._open_web = open_web
        self._web: ObjectStore | None = None
        self._old: list[ObjectStore] = []
        self._repositories: dict[str, str] = {}
        self._finding = asyncio.Lock()

    async def get(self, asked: Get, take: Take) -> None:
        """Reads a range (see `ObjectStore.get`); the first read of a repository may ask the Hub for its address."""
        target = asked.target
        if not target.version.startswith(versions.COMMIT):
            await super().get(asked, take)
            return
        address = self._address(target)
        if address is None or self._web is None:
            async with self._finding, self._use_files(target.url, target) as files:
                await asyncio.to_thread(self._find, files.filesystem, target.url)
            address = self._address(target)
        assert address is not None, "found"
        assert self._web is not None, "found"
        pinned = versions.pin_by_size(ObjectRecord(address, target.size, ""))
        await self._web.get(replace(asked, target=pinned), take)

    async def list(self, url: str) -> AsyncGenerator[Sequence[ObjectRecord], None]:
        """Lists objects (see `ObjectStore.list`), never from HfFileSystem's own cache.

        All pages of a repository are as of one commit.
        """
        async with self._use_files(url) as files:
            files.filesystem.invalidate_cache()
            repository, pinned = await asyncio.to_thread(self._resolve_commit, files.filesystem, url)
        async for page in super().list(pinned + url.removeprefix(repository)):
            yield [replace(record, url=repository + record.url.removeprefix(pinned)) for record in page]

    def statistics(self) -> StoreStatistics:
        """Returns the counts since the store was opened, with those of its reads by https."""
        own = super().statistics()
        webs = [web.statistics() for web in (self._web, *self._old) if web is not None]
        return StoreStatistics(
            own.requests + sum(web.requests for web in webs),
            own.lists,
            own.received_bytes + sum(web.received_bytes for web in webs),
        )

    async def refresh(self) -> None:
        """Forgets the clients (see `ObjectStore.refresh`); the token is looked up again."""
        await super().refresh()
        if self._web is not None:
            self._old.append(self._web)
        self._web = None

    async def aclose(self) -> None:
        """Closes all connections, those of fsspec and those of https; idempotent."""
        async with AsyncExitStack() as on_exit:
            on_exit.push_async_callback(super().aclose)
            await self.refresh()
            while self._old:
                on_exit.push_async_callback(self._old.pop().aclose)

    def _address(self, target: ObjectRecord) -> str | None:
        """Returns the web address of the file in its commit; None before `_find` was called for its repository."""
        for repository, web in self._repositories.items():
            if target.url.startswith(repository):
                commit = target.version.removeprefix(versions.COMMIT)
                return f"{web}/resolve/{commit}/{quote(target.url.removeprefix(repository))}"
        return None

    def _resolve_commit(self, files: AbstractFileSystem, url: str) -> tuple[str, str]:
        """Returns the url of the repository, and its url at the branch's present commit; twice "" for a bucket.

        Sends a request by the library of `files`, an HfFileSystem. Blocking.
        """
        from huggingface_hub import HfApi

        if self._root == _BUCKETS:
            return "", ""
        found = files.resolve_path(url)
        api = HfApi(endpoint=files.endpoint, token=files.token)
        commit = api.repo_info(found.repo_id, revision=found.revision, repo_type=found.repo_type).sha
        repository = url.rstrip("/").removesuffix(found.path_in_repo).rstrip("/")
        return repository, f"{repository.partition('@')[0]}@{commit}"

    def _find(self, files: AbstractFileSystem, url: str) -> None:
        """Finds which part of a url is the repository, for `_address`, and opens the store for https with the token.

        The library of `files`, an HfFileSystem, may send a request. Blocking.
        """
        from huggingface_hub import constants, get_token

        found = files.resolve_path(url)
        web = f"{files.endpoint}/{constants.REPO_TYPES_URL_PREFIXES.get(found.repo_type, '')}{found.repo_id}"
        given = self._options.get("token")
        token = given if isinstance(given, str) else get_token() if given is not False else None
        if self._web is None:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            self._web = self._open_web(files.endpoint, {"headers": headers})
        self._repositories[url.removesuffix(found.path_in_repo)] = web
