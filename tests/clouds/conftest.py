"""Emulators of the clouds' stores, as the suite's own processes, and the kinds of store that read them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import fsspec.asyn
import obstore
import pytest
import trustme

from streamer.store import ObjectStore, open_store
from tests.clouds import emulators

pytest.register_assert_rewrite("tests.contract.store_contract")

BUCKET = "contract"
Options = dict[str, object]


@dataclass(frozen=True)
class Cloud:
    """One bucket in one emulator, and the client that reads it.

    Attributes:
        root: the bucket's url.
        options: as fsspec takes them.
        client: "obstore" or "fsspec".
        writer: root and options of the store that writes, where the reading one cannot.
    """

    root: str
    options: Options = field(repr=False)
    client: str
    writer: tuple[str, Options] | None = field(default=None, repr=False)

    def open(self) -> ObjectStore:
        return open_store(self.root, self.options, client=self.client)  # type: ignore[arg-type]

    def open_writer(self) -> ObjectStore:
        return self.open() if self.writer is None else open_store(*self.writer)


@pytest.fixture(scope="session", autouse=True)
def quiet_process() -> Iterator[None]:
    """What lives as long as the process: obstore's and fsspec's threads, and gcsfs without its search for gRPC.

    fsspec's thread runs where a synchronous call is made, such as adlfs's finalizers when the garbage is collected.
    gcsfs 2026.10 asks a gRPC endpoint for the kind of each bucket, over TLS, whatever `endpoint_url` says.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        fsspec.asyn.get_loop()
        asyncio.run(_put_one(obstore.store.MemoryStore()))
        yield


async def _put_one(store: obstore.store.MemoryStore) -> None:
    await obstore.put_async(store, "warm", b"")


@pytest.fixture(scope="session")
def s3() -> Iterator[Options]:
    """moto over plain HTTP."""
    with emulators.moto() as endpoint:
        options: Options = {"key": "testing", "secret": "testing", "endpoint_url": endpoint}
        emulators.make_s3_bucket(options, BUCKET)
        yield options


@pytest.fixture(scope="session")
def private_ca(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Options, Path]]:
    """moto over HTTPS with a certificate of a CA that no system trusts; the options name the CA's file."""
    folder = tmp_path_factory.mktemp("ca")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    server = authority.issue_cert("127.0.0.1", "localhost")
    server.private_key_pem.write_to_path(str(folder / "key.pem"))
    server.cert_chain_pems[0].write_to_path(str(folder / "server.pem"))
    with emulators.moto("-c", folder / "server.pem", "-k", folder / "key.pem") as endpoint:
        options: Options = {"key": "testing", "secret": "testing", "endpoint_url": endpoint}
        options["client_kwargs"] = {"verify": str(folder / "ca.pem")}
        emulators.make_s3_bucket(options, BUCKET)
        yield options, folder / "ca.pem"


@pytest.fixture(scope="session")
def azure() -> Iterator[Options]:
    """Azurite, with one container."""
    with emulators.azurite() as connection:
        emulators.make_azure_container(connection, BUCKET)
        yield {"connection_string": connection}


@pytest.fixture(scope="session")
def google() -> Iterator[Options]:
    """gcp-storage-emulator, with one bucket.

    `session_kwargs` has no counterpart in obstore: also a dataset reads through gcsfs.
    """
    with emulators.google(BUCKET) as endpoint:
        yield {"token": "anon", "endpoint_url": endpoint, "session_kwargs": {}}


# An option of s3fs: what it writes may be read without a signature.
_PUBLIC: Options = {"s3_additional_kwargs": {"ACL": "public-read"}}
KINDS = (
    "s3-obstore",
    "s3-s3fs",
    "https-obstore",
    "https-s3fs",
    "azure-obstore",
    "azure-adlfs",
    "gs-gcsfs",
    "gs-obstore",
)


@pytest.fixture(scope="session", params=KINDS)
def cloud(request: pytest.FixtureRequest) -> Cloud:
    """Each emulator, read by each client that can.

    gcp-storage-emulator speaks only the JSON API, which gcsfs uses; obstore uses the XML API (listing: 501, 2026.7).
    That API is S3's but for the signature, so obstore's Google client reads moto, without signing. Not shown so:
    generations, Google's credentials, and writing (obstore signs every write; an S3 client puts the objects).
    """
    name, _, client = str(request.param).partition("-")
    client = client if client == "obstore" else "fsspec"
    if request.param == "gs-obstore":
        s3: Options = request.getfixturevalue("s3")
        options: Options = {"token": "anon", "endpoint_url": s3["endpoint_url"]}
        return Cloud(f"gs://{BUCKET}", options, client, (f"s3://{BUCKET}", s3 | _PUBLIC))
    fixtures = {"s3": "s3", "https": "private_ca", "azure": "azure", "gs": "google"}
    found = request.getfixturevalue(fixtures[name])
    scheme = {"azure": "az", "gs": "gs"}.get(name, "s3")
    return Cloud(f"{scheme}://{BUCKET}", found[0] if name == "https" else found, client)


@pytest.fixture(scope="session")
def untrusting(private_ca: tuple[Options, Path]) -> Options:
    """The options of the HTTPS endpoint without its CA."""
    return {name: value for name, value in private_ca[0].items() if name != "client_kwargs"}
