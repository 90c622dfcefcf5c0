"""What an engine opens before the session that needs it."""

from __future__ import annotations

from streamer.config import CacheConfig, EngineConfig
from streamer.engine.engine import Engine
from streamer.engine.indexing import ManifestRequest
from streamer.store.local_store import LocalStore


async def done(calls, store):
    calls.append(store)


async def test_the_store_is_open_before_the_session_comes(tmp_path, monkeypatch):
    """With the options that the session will have; what cannot be opened is said to the session, not here."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "one.bin").write_bytes(bytes(100))
    cache = CacheConfig(directory=tmp_path / "cache", limit_bytes=2 << 20, free_floor_bytes=0)
    async with Engine(EngineConfig(cache=cache)) as engine:
        request = ManifestRequest(urls=(str(tmp_path / "data"),))
        digest = await engine.manifest(request, lambda *told: None)
        assert len(engine.fetchers) == 1
        prepared = []
        monkeypatch.setattr(LocalStore, "prepare", lambda store: done(prepared, store))
        await engine.expect(digest, {"token": "renewed"})
        assert (len(engine.fetchers), len(prepared)) == (2, 1)
        await engine.expect("0" * 32, {})
        assert len(engine.fetchers) == 2
