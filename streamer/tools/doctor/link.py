"""Checks the link to a url: the time to the first byte, and the rate of one connection and of many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from streamer.config import format_bytes
from streamer.errors import ConfigError, StreamerError
from streamer.store import open_store
from streamer.tools.doctor.finding import Finding
from streamer.tools.link.meter import QUICK_CONNECTIONS, QuickTest, find_objects, measure_link

# Long enough for connections to be opened and to reach their rate; what is read in this time is the price of the check.
SECONDS = 1.0


async def link_findings(url: str, options: Mapping[str, object], seconds: float = SECONDS) -> list[Finding]:
    """Reads from the objects below a url for some seconds, with one connection and with many."""
    try:
        store = open_store(url, options)
        try:
            return list(assess_link(await measure_link(store, await find_objects(store, url), seconds)))
        finally:
            await store.aclose()
    except ConfigError:
        return []  # There is nothing to read, which the check of the url has said already.
    except (StreamerError, OSError) as error:
        return [Finding("warning", "link", str(error), "docs/trouble.md")]


def assess_link(test: QuickTest) -> Iterator[Finding]:
    """Yields the rates, and a warning where requests failed."""
    one = format_bytes(test.one.bytes_per_second)
    many = format_bytes(test.many.bytes_per_second)
    first_byte = f"first byte after {test.latency.median_seconds * 1e3:.0f} ms"
    fact = f"{first_byte}, {one}/s with one connection, {many}/s with {QUICK_CONNECTIONS}"
    failed = [*test.one.errors, *test.many.errors]
    if not test.many.received_bytes:
        yield Finding(
            "warning", "link", fact, "nothing arrived in time; --seconds 10 of streamer bench measures longer"
        )
    elif failed:
        names = ", ".join(f"{failed.count(name)} {name}" for name in sorted(set(failed)))
        advice = "the engine retries and slows down; ask for a higher rate limit if this is the job's own traffic"
        yield Finding("warning", "link", f"{fact}; failed: {names}", advice)
    else:
        yield Finding("ok", "link", fact)
