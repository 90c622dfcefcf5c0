"""What an engine lets go of when nobody has used it for a while: a service that lives for months must not grow.

    open manifests       that no session and no flight is on
    fetchers             of credentials that no session has, closed
    manifests on disk    that were superseded, or are the least used of too many; see `shelf`
    groups of chunks     of manifests that are gone: their chunks stay, as nobody's, and are evicted first

"For a while": since the last look but one at most. What a later session needs is on the disk: to open a manifest takes
milliseconds, to open a fetcher a connection.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from streamer.engine.datasets import options_key

if TYPE_CHECKING:
    from streamer.engine.engine import Engine

logger = logging.getLogger(__name__)

# Validation between two epochs, a new job of the same user: within minutes.
LOOK_SECONDS = 300.0
# Of the limit, for manifests that nobody has open; a manifest takes 0.01 to 0.1 % of its data.
IDLE_MANIFESTS_SHARE = 1 / 16


async def keep_tidy(engine: Engine, every_seconds: float = LOOK_SECONDS) -> None:
    """Tidies up at once, for what an earlier engine has left, and again and again until it is cancelled."""
    while True:
        try:
            await tidy(engine)
        except OSError as error:
            logger.warning("cannot remove manifests that nobody uses: %s; tried again", error)
        await asyncio.sleep(every_seconds)


async def tidy(engine: Engine) -> None:
    """Lets go of what nobody has used since the last call.

    Raises:
        OSError: the disk does not let us remove manifests; the next call tries again.
    """
    held = {session.dataset.manifest.digest: session.dataset for session in engine.sessions.values()}
    held |= {dataset.manifest.digest: dataset for dataset in engine.flights.datasets()}
    engine.datasets.drop_idle(held)
    engine.fetchers.close_idle({options_key(dataset.options) for dataset in held.values()})
    opened = {dataset.manifest.digest for dataset in engine.datasets.all()} | set(held)
    gone = await engine.indexing.tidy(opened, int(engine.cache.limit_bytes * IDLE_MANIFESTS_SHARE))
    engine.forget_datasets()
    if gone:
        logger.info("%d manifests that nobody uses are removed: %s", len(gone), ", ".join(sorted(gone)))
        await engine.cache.measure()
        engine.limit_changed(engine.cache.limit_bytes)
