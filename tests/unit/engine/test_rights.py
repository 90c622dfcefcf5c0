"""Storage options of clients in a shared service: no client reads with those of another one, or its bytes."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
import obstore
import obstore.store
import pytest

from streamer.config import CacheConfig, DatasetConfig, EngineConfig
from streamer.engine import datasets
from streamer.engine.engine import Engine
from streamer.engine.manifests.manifest_copy import Ownership
from streamer.engine.manifests.manifest_store import LocatedRequest
from streamer.errors import AccessDeniedError, ManifestCorruptError, ManifestError
from streamer.indexing.publish import publish_at
from streamer.manifest.layout import ROOT_NAME, decode_root, encode_root
from streamer.manifest.table import Manifest
from streamer.manifest.transfer import export_files
from streamer.store import guard
from streamer.wire.messages import GetManifest, OpenSession
from streamer.wire.schedule import EpochSchedule
from streamer.wire.store_options import StoreOptions
from tests.tars import tar_of

pytestmark = pytest.mark.process

A = {"key": "AKIDA", "secret": "s"}
GOOD = tar_of([(f"{i:03}.bin", b"good" * 300) for i in range(40)])
EVIL = tar_of([(f"{i:03}.bin", b"EVIL" * 300) for i in range(40)])


class S3:
    """Stands for an S3 store that denies buckets to other keys; ETags depend on the name, signatures are ignored."""

    def __init__(self, objects: dict[str, bytes], keys: dict[str, str]) -> None:
        self.objects, self.keys = objects, keys
        self.seen: list[tuple[str, str, str]] = []
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                store.answer(self)

            do_HEAD = do_PUT = do_GET

            def log_message(self, *arguments: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        url, signed = urlsplit(request.path), request.headers.get("Authorization", "")
        name = unquote(url.path).lstrip("/")
        bucket, _, key = name.partition("/")
        used = signed.partition("Credential=")[2].partition("/")[0]
        self.seen.append((request.command, name, used))
        if request.command == "PUT":
            self.objects[name] = request.rfile.read(int(request.headers["Content-Length"]))
            self._send(request, 200, b"", {"ETag": '"x"'})
        elif used != self.keys.get(bucket, used):
            self._send(request, 403, b"<Error><Code>AccessDenied</Code></Error>")
        elif not key:
            prefix = f"{bucket}/{parse_qs(url.query).get('prefix', [''])[0]}"
            entries = (
                f"<Contents><Key>{one.partition('/')[2]}</Key><Size>{len(self.objects[one])}</Size><ETag>&quot;"
                f"{etag(one)}&quot;</ETag><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
                for one in sorted(self.objects)
                if one.startswith(prefix)
            )
            text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(entries)}</ListBucketResult>"
            self._send(request, 200, text.encode())
        elif name not in self.objects:
            self._send(request, 404, b"<Error><Code>NoSuchKey</Code></Error>")
        else:
            body, span = self.objects[name], request.headers.get("Range", "")[6:].partition("-")
            start, stop = int(span[0] or 0), min(int(span[2] or len(body)) + 1, len(body))
            headers = {"ETag": f'"{etag(name)}"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
            if span[1]:
                headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(body)}"
            self._send(request, 206 if span[1] else 200, body[start:stop] if span[1] else body, headers)

    def _send(
        self, request: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str] | None = None
    ) -> None:
        request.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            request.send_header(name, value)
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body)


def etag(name: str) -> str:
    return hashlib.md5(name.encode()).hexdigest()


@pytest.fixture(scope="module", autouse=True)
def runtime() -> None:
    """Starts the runtime of obstore, which writes: its descriptors stay until the process ends."""

    async def start() -> None:
        await obstore.put_async(obstore.store.MemoryStore(), "a", b"")

    asyncio.run(start())


@pytest.fixture
def stores() -> Iterator[list[S3]]:
    """Collects the stores of a test, and closes them at its end."""
    made: list[S3] = []
    yield made
    for store in made:
        store.close()


def store(stores: list[S3], objects: dict[str, bytes], **keys: str) -> S3:
    stores.append(S3(objects, keys))
    return stores[-1]


def engine_in(folder: Path, *datasets: DatasetConfig) -> Engine:
    cache = CacheConfig(directory=folder, limit_bytes=64 << 20)
    return Engine(EngineConfig(cache=cache, settle_seconds=0.0, refuse_local=not datasets, datasets=datasets))


@pytest.fixture
async def shared(tmp_path, monkeypatch, stores) -> AsyncIterator[tuple[Engine, S3]]:
    """Runs a service without [[datasets]], whose own environment names the store and has no keys."""
    s3 = store(stores, {"private/x/a.tar": GOOD}, private="AKIDA")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.url)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    async with engine_in(tmp_path / "cache") as engine:
        yield engine, s3


def session_of(job: str, digest: str, options: dict[str, object]) -> OpenSession:
    return OpenSession(0, job=job, dataset=digest, consumer="rank 0", options=StoreOptions.make(options))


async def ask(engine: Engine, url: str, options: dict[str, object] | None = None, **more: object) -> str:
    return await engine.manifest(
        GetManifest(0, [url], "auto", StoreOptions.make(options or {}), **more), lambda *_: None
    )


async def test_a_digest_gives_no_right(shared):
    """A client that knows the digest of a dataset reads it with its own options only, which the store refuses."""
    engine, s3 = shared
    digest = await ask(engine, "s3://private/x/", A)
    assert b"goodgood" in await engine.read(digest, StoreOptions.make(A), 0, (0, 2000))
    before = len(s3.seen)
    for options in ({}, {"key": "AKIDB", "secret": "s"}):
        with pytest.raises(AccessDeniedError):
            await engine.read(digest, StoreOptions.make(options), 0, (0, 2000))
        assert not engine.rights.has(digest, StoreOptions.make(options))
    assert not any(used == "AKIDA" for _, _, used in s3.seen[before:])


async def test_a_restarted_engine_asks_the_store(shared, tmp_path):
    """A restarted engine asks the store once whether a client may read a dataset; one that may not is refused."""
    engine, s3 = shared
    digest = await ask(engine, "s3://private/x/", A)
    async with engine_in(tmp_path / "cache2") as later:
        (tmp_path / "cache2" / "manifests").mkdir(exist_ok=True)
        publish_at(Manifest.open(tmp_path / "cache" / "manifests" / digest), tmp_path / "cache2" / "manifests", "")
        before = len(s3.seen)
        await later.rights.prove(digest, StoreOptions.make(A))
        assert [seen[1] for seen in s3.seen[before:]] == ["private/x/a.tar"]
        await later.rights.prove(digest, StoreOptions.make(A))
        assert len(s3.seen) == before + 1
        with pytest.raises(AccessDeniedError):
            await later.rights.prove(digest, StoreOptions.make({}))


async def test_many_urls_of_several_buckets_are_looked_at_in_a_thread(shared, monkeypatch):
    """The buckets of a dataset with many objects are found in a thread, once for its right and its options."""
    engine, s3 = shared
    s3.objects["public/y/b.tar"] = GOOD
    options = StoreOptions.make(A)
    request = GetManifest(0, ["s3://private/x/", "s3://public/y/"], "auto", options)
    digest = await engine.manifest(request, lambda *_: None)
    threads = []
    look = datasets.find_roots
    monkeypatch.setattr(datasets, "_FEW_OBJECTS", 1)
    monkeypatch.setattr(datasets, "find_roots", lambda one: threads.append(threading.current_thread()) or look(one))
    assert not engine.rights.has(digest, options)
    await engine.rights.prove(digest, options)
    assert engine.rights.has(digest, options)
    assert engine.datasets.get(digest, options.mapping).options == A
    assert [thread is threading.main_thread() for thread in threads] == [False]


async def test_equal_requests_with_other_options_are_asked_separately(shared):
    """Two equal requests at the same time with different options get separate answers."""
    engine, _ = shared
    first, second = await asyncio.gather(
        ask(engine, "s3://private/x/", A), ask(engine, "s3://private/x/"), return_exceptions=True
    )
    assert isinstance(first, str)
    assert isinstance(second, AccessDeniedError)


async def test_sessions_read_with_their_own_options(shared):
    """Each session reads with its own options, which those of a later session on the same manifest do not change."""
    engine, _ = shared
    digest = await ask(engine, "s3://private/x/", A)
    mine = engine.datasets.get(digest, A)
    other = {"key": "AKIDA", "secret": "s", "token": "t"}
    assert engine.datasets.get(digest, other) is not mine
    assert (mine.options, engine.datasets.get(digest, A)) == (A, mine)
    session = engine.open_session(
        session_of("j", digest, A),
        lambda *_: None,
        lambda _: None,
    )
    engine.open_session(
        session_of("k", digest, other),
        lambda *_: None,
        lambda _: None,
    )
    assert [dataset.options for dataset in session.collection.datasets] == [A]
    assert len(engine.datasets.manifests()) == 1


async def test_an_endpoint_that_a_client_names_has_its_own_chunks(tmp_path, monkeypatch, stores):
    """Chunks and manifests of an endpoint that a client names are its own, even with equal urls, sizes and ETags."""
    monkeypatch.setattr(guard, "_OWN_NETWORKS", ())
    real, fake = (store(stores, {"victim/a.tar": content}) for content in (GOOD, EVIL))
    monkeypatch.setenv("AWS_ENDPOINT_URL", real.url)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    victim, other = {"key": "V", "secret": "s"}, {"key": "E", "secret": "s", "endpoint_url": fake.url}
    async with engine_in(tmp_path / "cache") as engine:
        theirs = await ask(engine, "s3://victim/", other)
        mine = await ask(engine, "s3://victim/", victim)
        assert mine != theirs
        keys = [engine.datasets.get(digest, options).key(0) for digest, options in ((mine, victim), (theirs, other))]
        assert keys[0] != keys[1]
        assert b"EVIL" in await engine.read(theirs, StoreOptions.make(other), 0, (0, 2000))
        assert b"good" in await engine.read(mine, StoreOptions.make(victim), 0, (0, 2000))
        with pytest.raises(AccessDeniedError, match="another endpoint"):
            await engine.read(mine, StoreOptions.make(other), 0, (0, 2000))
        # Chunks that were read for the index at the endpoint are not kept under the usual keys.
        assert not engine.cache.contains(keys[0]) or b"EVIL" not in engine.cache.path(keys[0]).read_bytes()


async def test_an_engine_of_one_user_keeps_its_keys(tmp_path, stores):
    """An engine of one user has the usual keys for a named endpoint, so that what is cached stays in use."""
    s3 = store(stores, {"b/a.tar": GOOD})
    config = EngineConfig(cache=CacheConfig(directory=tmp_path / "cache", limit_bytes=64 << 20), settle_seconds=0.0)
    async with Engine(config) as engine:
        digest = await ask(engine, "s3://b/", {**A, "endpoint_url": s3.url})
        assert Manifest.open(tmp_path / "cache" / "manifests" / digest).content.endpoint == ""
        assert engine.rights.has("anything", StoreOptions.make({}))


# ------------------------------------------------------------ services with [[datasets]]


@pytest.fixture
def restricted(tmp_path, stores) -> tuple[Engine, S3]:
    """Makes a service with two [[datasets]] of one store, each with its own access key."""
    s3 = store(stores, {"corp/train/a.tar": GOOD, "scratch/x/a.tar": EVIL})
    options = {"key": "K", "secret": "s", "endpoint_url": s3.url}
    corp = DatasetConfig(url="s3://corp/train/", storage_options=options)
    scratch = DatasetConfig(url="s3://scratch/", storage_options={**options, "key": "L"})
    return engine_in(tmp_path / "cache", corp, scratch), s3


async def test_the_urls_that_a_manifest_names_do_not_choose_its_options(restricted, tmp_path):
    """The urls in a manifest, which are not in its digest, do not choose its storage options."""
    engine, _ = restricted
    async with engine:
        digest = await ask(engine, "s3://corp/train/")
        root = tmp_path / "cache" / "manifests" / digest / ROOT_NAME
        found = decode_root(root.read_bytes(), "root")
        root.write_bytes(encode_root(found.content, ["s3://scratch/x/"], found.file_bytes))
        engine.datasets.drop_idle(())
        assert engine.datasets.get(digest, {}).options["key"] == "K"
        assert b"good" in await engine.read(digest, StoreOptions.make({}), 0, (0, 2000))


async def test_a_manifest_from_elsewhere_does_not_rename_chunks(restricted, tmp_path, caplog):
    """A manifest from elsewhere with foreign chunk keys is not used: the data are indexed, or it is an error."""
    from tests.unit.manifest.test_chunk_keys import with_keys

    engine, s3 = restricted
    async with engine:
        folder = tmp_path / "cache" / "manifests"
        corp, scratch = [
            Manifest.open(folder / await ask(engine, url)) for url in ("s3://corp/train/", "s3://scratch/x/")
        ]
        forged = with_keys(scratch, tmp_path / "forged", corp.chunk_keys.copy())
        for name, content in export_files(Manifest.open(forged)):
            s3.objects[f"scratch/m/{name}"] = content
        assert await ask(engine, "s3://scratch/x/", manifest="s3://scratch/m/") == scratch.digest
        assert "is not used, the data are indexed" in caplog.text
        with pytest.raises(ManifestCorruptError, match="is not that of its objects"):
            await ask(engine, "s3://scratch/x/", manifest="s3://scratch/m/", build=False)


async def test_a_manifest_that_an_earlier_version_took_is_checked_before_use(restricted, tmp_path):
    """A manifest in the folder whose chunk keys its writer chose is refused before it is read."""
    from tests.unit.manifest.test_chunk_keys import with_keys

    engine, _ = restricted
    async with engine:
        folder = tmp_path / "cache" / "manifests"
        scratch = Manifest.open(folder / await ask(engine, "s3://scratch/x/"))
        forged = Manifest.open(with_keys(scratch, tmp_path / "forged", np.zeros_like(scratch.chunk_keys)))
        forged.path.rename(folder / forged.digest)
        with pytest.raises(ManifestCorruptError, match="the key of chunk 0"):
            await engine.read(forged.digest, StoreOptions.make({}), 0, (0, 100))


async def test_columns_from_elsewhere_are_not_used(restricted, tmp_path):
    """Columns of a manifest from another place than its data, which decide a selection, are not used."""
    from streamer.manifest.column_files import ColumnFiles

    engine, s3 = restricted
    async with engine:
        folder = tmp_path / "cache" / "manifests"
        corp = Manifest.open(folder / await ask(engine, "s3://corp/train/"))
        columns = ColumnFiles(corp, tmp_path / "made")
        columns.add("label", [7] * corp.samples)
        files = [*columns.export(), *export_files(corp)]
        for path in folder.glob("*.column"):
            path.unlink()
        for place, kept in (("scratch/m", False), ("corp/train/m", True)):
            for name, content in files:
                s3.objects[f"{place}/{name}"] = content
            assert await ask(engine, "s3://corp/train/a.tar", manifest=f"s3://{place}/") == corp.digest
            assert bool(list(folder.glob("*.column"))) is kept


def test_a_request_names_the_place_of_its_options():
    """A request for a named endpoint has other identities than the same one without, which keeps the earlier ones."""
    request = GetManifest(0, ["s3://b/"], "auto")
    plain = LocatedRequest.make(request)
    there = LocatedRequest.make(request, "endpoint http://e")
    for name in ("identity", "container_source", "file_source"):
        assert getattr(there, name) == (*getattr(plain, name), "at endpoint http://e")


# ------------------------------------------------------------ what a service writes


@pytest.mark.parametrize("folder", ["by-a-trainer", "other", ".streamer"])
async def test_a_trainer_makes_a_service_write_nothing(restricted, folder):
    """A trainer cannot make a service write below configured urls, though the service's keys may do it."""
    engine, s3 = restricted
    s3.objects["corp/train/other/objects-00000.arrows"] = b"somebody's file"
    async with engine:
        with pytest.raises(AccessDeniedError, match=r"writable = true"):
            await ask(engine, "s3://corp/train/a.tar", manifest=f"s3://corp/train/{folder}/")
    assert not [name for method, name, _ in s3.seen if method == "PUT"]
    assert s3.objects["corp/train/other/objects-00000.arrows"] == b"somebody's file"


async def test_a_service_without_datasets_writes_nothing(shared):
    """A service without datasets writes no manifests, neither with its own keys nor with those of a client."""
    engine, s3 = shared
    with pytest.raises(AccessDeniedError, match=r"writable = true"):
        await ask(engine, "s3://private/x/", A, manifest="s3://private/m/")
    assert not [name for method, name, _ in s3.seen if method == "PUT"]


async def test_writable_datasets_get_manifests(tmp_path, stores):
    """A service writes manifests to writable datasets, over no other owner's object, and completes killed writes."""
    s3 = store(stores, {"corp/train/a.tar": GOOD, "corp/train/other/objects-00000.arrows": b"somebody's file"})
    options = {"key": "K", "secret": "s", "endpoint_url": s3.url}
    corp = DatasetConfig(url="s3://corp/train/", storage_options=options, writable=True)
    async with engine_in(tmp_path / "cache", corp) as engine:
        url = "s3://corp/train/a.tar"
        with pytest.raises(ManifestError, match="is not a file of this manifest"):
            await ask(engine, url, manifest="s3://corp/train/other/")
        assert s3.objects["corp/train/other/objects-00000.arrows"] == b"somebody's file"
        digest = await ask(engine, url, manifest="s3://corp/train/m/")
        del s3.objects["corp/train/m/root.json"]
        s3.seen.clear()
        assert await ask(engine, url, manifest="s3://corp/train/m/") == digest
        assert [name for method, name, _ in s3.seen if method == "PUT"] == ["corp/train/m/root.json"]


# ------------------------------------------------------------ what cannot be computed again


async def test_how_blocks_are_recoded_is_believed_of_their_place_only(restricted, tmp_path):
    """A manifest of recoded blocks, whose facts no key holds, must lie in the same place as its data."""
    engine, _ = restricted
    async with engine:
        folder = tmp_path / "cache" / "manifests"
        corp = Manifest.open(folder / await ask(engine, "s3://corp/train/"))
        for place, believed in (("s3://corp/train/m/", True), ("s3://scratch/m/", False)):
            owned = Ownership(engine.fetchers.allowlist, place)
            owned.check(corp)
            assert owned.is_one is believed
        corp.recoded = True
        with pytest.raises(ManifestCorruptError, match="does not lie in the same place"):
            Ownership(engine.fetchers.allowlist, "s3://scratch/m/").check(corp)
        Ownership(engine.fetchers.allowlist, "s3://corp/train/m/").check(corp)


async def test_a_refusal_of_one_client_is_not_that_of_another(shared):
    """A session that waits for a fetch that fails by another client's keys fetches with its own."""
    engine, _ = shared
    digest = await ask(engine, "s3://private/x/", A)
    wrong = {"key": "AKIDB", "secret": "s"}
    engine.rights.grant(digest, StoreOptions.make(wrong))
    ready, errors = asyncio.Event(), []
    sessions = [
        engine.open_session(
            session_of(f"job {options['key']}", digest, options),
            lambda through, _, options=options: ready.set() if options is A and through >= 0 else None,
            errors.append,
        )
        for options in (wrong, A)
    ]
    dataset = engine.datasets.get(digest, A)
    kept = engine.cache.keys()
    for key in kept:
        engine._forget(key)
    chunks = np.arange(dataset.manifest.chunks, dtype=np.uint32)
    steps = np.zeros(len(chunks), np.int64)
    for session in sessions:
        session.extend(EpochSchedule(0, chunks, steps, steps), True)
        session.advance(0, 0)
    await asyncio.wait_for(ready.wait(), 30)
    assert sessions[1].failed is None
    assert all(isinstance(error, AccessDeniedError) for error in errors)
    assert b"good" in engine.cache.path(dataset.key(0)).read_bytes()


async def test_a_refused_reload_changes_nothing(restricted):
    """A reload with a refused url of a dataset changes neither the allowlist nor the cache's limit."""
    engine, _ = restricted
    async with engine:
        limit, allowlist = engine.cache.limit_bytes, engine.fetchers.allowlist
        out = DatasetConfig(url="s3://corp/train/../secret/", storage_options={})
        cache = CacheConfig(directory=engine.config.cache.directory, limit_bytes=32 << 20)
        with pytest.raises(AccessDeniedError, match="secret"):
            await engine.reload(replace(engine.config, cache=cache, datasets=(out,)))
        assert (engine.cache.limit_bytes, engine.fetchers.allowlist) == (limit, allowlist)
        assert engine.config.cache.limit_bytes == 64 << 20
