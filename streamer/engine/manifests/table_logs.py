"""Refuses to index some data files of a table, such as one of Delta, Iceberg or Hudi, without the table's log.

`manifests.py` calls it before it builds a manifest. Urls may name a pattern of files, or a folder below the table's. A
log beside or above them says which files and rows are valid, and an index of the files alone would not know it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from streamer.base.concurrency import in_thread
from streamer.engine.manifests.manifest_store import LocatedRequest
from streamer.engine.url_allowlist import UrlAllowlist
from streamer.errors import ManifestError, StreamerError
from streamer.fetch import Fetcher
from streamer.manifest.model import ObjectRecord

logger = logging.getLogger(__name__)


async def refuse_tables_around(
    asked: LocatedRequest, records: Sequence[ObjectRecord], fetcher: Fetcher, allowlist: UrlAllowlist
) -> None:
    """Refuses files of a table whose log is beside or above them. Files that are named one by one are not looked at.

    Args:
        asked: the request.
        records: the objects that were listed for it.
        fetcher: lists the folders above.
        allowlist: decides which of these folders may be listed.

    Raises:
        ManifestError: there is such a log; the text says how to read the table.
        AccessDeniedError, ConfigError: as `UrlAllowlist.options`.
    """
    # Imported late: an engine that finds its manifests starts sooner.
    from streamer.formats import AUTO
    from streamer.formats.registry import find_format
    from streamer.formats.table.layouts import has_data, logs_around, refuse_table, table_log

    request = asked.message
    if request.format != AUTO and not find_format(request.format, asked.format_options).reads_tables:
        return

    def find_folders() -> list[str]:
        """Returns the folders in which a log may be; raises ManifestError if the listing itself has one."""
        urls = [record.url for record in records]
        if not has_data(urls):
            return []
        # The listing itself may have a log: the index leaves out hidden folders, such as Hudi's.
        if found := table_log(urls):
            raise ManifestError(refuse_table(*found), url=found[1])
        objects = set(urls)
        return list(dict.fromkeys(folder for url in request.urls for folder in logs_around(url, objects)))

    # It is done in a thread: a million names take 0.5 s.
    if not (folders := await in_thread(None, find_folders)):
        return
    options = await in_thread(None, allowlist.options, request.urls, request.options.mapping)

    async def look(folder: str) -> str:
        """Returns the refusal of a table whose log is in a folder, or "" if there is none or it cannot be listed."""
        try:
            allowlist.check_objects([folder], options)
            pages = await fetcher.list(folder, enough=lambda pages: True)
        except StreamerError as error:
            # The folder does not exist, or this client may not list it.
            logger.debug("%s is not looked at: %s", folder, error)
            return ""
        above = table_log(record.url for page in pages for record in page)
        return refuse_table(*above) if above else ""

    for refusal in await asyncio.gather(*map(look, folders)):
        if refusal:
            raise ManifestError(refusal, url=request.urls[0])
