"""What fsspec's filesystems do differently from each other, on fakes of the ones that do it."""

from __future__ import annotations

from fsspec.asyn import AsyncFileSystem

from streamer.store.fsspec_store import FileCalls


class Session:
    """Counts how often it was closed."""

    def __init__(self) -> None:
        self.closed = 0

    async def close(self) -> None:
        self.closed += 1


class AzureLike(AsyncFileSystem):
    """As adlfs 2026.8: `find` of one object gives its bare name, and the session is called `service_client`."""

    cachable = False

    def __init__(self) -> None:
        super().__init__(asynchronous=True)
        self.service_client = Session()

    async def _find(self, path: str, **_options: object) -> list[str]:
        return [path]

    async def _info(self, path: str, **_options: object) -> dict[str, object]:
        return {"name": path, "size": 7, "etag": "0x8D"}


async def test_bare_names_of_a_listing_are_described() -> None:
    """A filesystem that ignores `detail` for one object costs one request more, and no ValueError."""
    found = await FileCalls(AzureLike()).find("container/key")
    assert found == {"container/key": {"name": "container/key", "size": 7, "etag": "0x8D"}}


async def test_the_session_of_azure_is_closed() -> None:
    """Closing the calls closes the session that the filesystem opened."""
    files = AzureLike()
    await FileCalls(files).aclose()
    assert files.service_client.closed == 1
