"""Takes the manifest of a dataset that is not known here from the peer that asks for one of its chunks.

So an engine without a job is the home of its share of the chunks, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from streamer.base.concurrency import in_thread
from streamer.config import format_bytes
from streamer.engine.datasets import find_roots
from streamer.engine.engine import Engine
from streamer.errors import ManifestError, StreamerError
from streamer.manifest.layout import ROOT_LIMIT_BYTES, ROOT_NAME, decode_root
from streamer.manifest.transfer import install_files
from streamer.peers.client import PeerClient
from streamer.peers.homes import PeerMember

logger = logging.getLogger(__name__)

# A peer is asked again after this for a manifest that it did not send, or that this service may not serve.
_AGAIN_SECONDS = 60.0
# It is in memory until it is written: 4 bytes a sample in tars, 60 million of them.
_MOST_BYTES = 256 << 20
_MOST_MISSING = 256


class MissingManifests:
    """Gets manifests for a service whose `[[datasets]]` say how to read what they name. On the engine's loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._next: dict[str, float] = {}
        self._missing: asyncio.Queue[tuple[str, str]] = asyncio.Queue(_MOST_MISSING)

    def record_missing(self, digest: str, member: str) -> None:
        """Records that the peer of this id asked for a chunk of a dataset that is not here."""
        now = self._engine.now()
        if now >= self._next.get(digest, now) and not self._missing.full():
            self._next = {known: again for known, again in self._next.items() if again > now}
            self._next[digest] = now + _AGAIN_SECONDS
            self._missing.put_nowait((digest, member))

    async def take(self, client: PeerClient, members: Callable[[], Sequence[PeerMember]]) -> None:
        """Takes missing manifests, one after the other, until it is cancelled.

        Args:
            client: asks peers.
            members: returns the members of now; no other engine is asked.
        """
        while True:
            digest, asker = await self._missing.get()
            for member in members():
                if member.id == asker:
                    await self._take(client, digest, member)

    async def _take(self, client: PeerClient, digest: str, member: PeerMember) -> None:
        where = f"manifest {digest} of peer {member.address}"

        async def file(name: str, max_bytes: int) -> bytes:
            content = await client.manifest_file(member, digest, name, max_bytes)
            if content is None:
                raise ManifestError(f"{name} was not sent")
            return content

        try:
            raw = await file(ROOT_NAME, ROOT_LIMIT_BYTES)
            root = decode_root(raw, where)
            if root.digest != digest:
                raise ManifestError(f"it is manifest {root.digest}")
            allowlist = self._engine.fetchers.allowlist
            allowlist.options(root.urls, {})
            if (total := sum(root.file_bytes.values())) > _MOST_BYTES:
                raise ManifestError(f"it has {format_bytes(total)}, more than {format_bytes(_MOST_BYTES)}")
            files = [(ROOT_NAME, raw)]
            for name, length in root.file_bytes.items():
                files.append((name, await file(name, length)))
            manifest = await in_thread(None, install_files, files, self._engine.cache.root / "manifests", where)
            allowlist.options(find_roots(manifest), {})
        except StreamerError as error:
            logger.info("%s: its chunks are not kept for peers: %s", where, error)
        else:
            logger.info("%s: its chunks are kept for peers", where)
