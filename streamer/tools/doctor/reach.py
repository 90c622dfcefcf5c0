"""Checks whether a url can be read: credentials, server, clocks, time to the first byte, and rates of the link.

`streamer doctor` runs these checks (`tools/doctor/__init__.py`); `tools/bench_command.py` uses `access_findings`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing, closing
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from streamer.config import format_bytes
from streamer.errors import ConfigError, StreamerError
from streamer.store import open_root
from streamer.store.addresses.urls import shown
from streamer.store.base import Get
from streamer.store.credentials.boto_keys import AwsKeys
from streamer.store.root import StoreRoot
from streamer.tools.doctor import Finding
from streamer.tools.link_meter import QUICK_CONNECTIONS, QuickTest, find_objects, measure_link

if TYPE_CHECKING:
    from streamer.manifest.model import ObjectRecord
    from streamer.store import ObjectStore

# Difference of the clocks that is a problem. S3 refuses requests whose time differs by more than 15 minutes.
_SKEW_SECONDS = 60.0
# Timeouts of the requests for a server's time, and for the identity.
_CLOCK_SECONDS = 5.0
_STS_SECONDS = 3.0
# Credentials that end sooner give a warning.
_GOOD_SECONDS = 600.0
_AWS_DOMAINS = (".amazonaws.com", ".amazonaws.com.cn", ".amazonaws.eu")
_PAGE = "docs/deploy/credentials.md"
# Duration of each measurement of the link: long enough for connections to be opened and to reach their rate.
SECONDS = 1.0


async def url_findings(root: StoreRoot, url: str) -> list[Finding]:
    """Checks the access to a root, lists the first objects below a url of it, and reads a byte of one.

    Errors of the store become findings.

    Raises:
        ConfigError: the store cannot be opened with these options.
        AccessDeniedError: the store may not be opened.
    """
    found = access_findings(root)
    store = open_root(root)
    try:
        found += await _objects(store, url)
    except (StreamerError, OSError) as error:
        found.append(
            Finding(
                "problem",
                "url",
                str(error),
                "docs/trouble.md" if root.family is None else f"{_PAGE} and docs/trouble.md",
            )
        )
    finally:
        await store.aclose()
    return found


def access_findings(root: StoreRoot) -> list[Finding]:
    """Returns findings about the credentials of a root and about its server; none if only fsspec reads it."""
    if root.family is None:
        return []
    try:
        found = [] if root.is_web else list(credential_findings(root))
        return [*found, *_clock(_endpoint(root))]
    except StreamerError as error:  # options and configuration do not make an address
        return [Finding("problem", "endpoint", str(error), _PAGE)]


def credential_findings(root: StoreRoot) -> Iterator[Finding]:
    """Yields findings about the origin, the end and, for AWS, the owner of the credentials, without their values.

    Raises:
        ConfigError: the options and the configuration do not make an address.
    """
    find = root.make_credentials_finder()
    if find is None:
        anonymous = root.settings.config.get("skip_signature")
        fact = "none: anonymous, as the storage options say" if anonymous else "of the options or the environment"
        yield Finding("ok", "credentials", fact)
        return
    try:
        issued = find()
    except StreamerError as error:
        yield Finding("problem", "credentials", str(error), _PAGE)
        return
    if issued.credentials is None:
        fact = "the cloud's own library is not installed, or has nothing to do; obstore looks by itself"
        yield Finding("warning", "credentials", fact, _PAGE)
        return
    region = f", region {issued.region}" if issued.region else ""
    fact = f"{issued.source}{region}"
    if issued.ends is None:
        yield Finding("ok", "credentials", f"{fact}, without an end")
    else:
        left = issued.seconds_left()
        fact += f", until {issued.ends:%H:%M:%S} UTC ({left / 60:.0f} min)"
        if left < _GOOD_SECONDS:
            advice = "they end within ten minutes; they are renewed where they can be"
            yield Finding("warning", "credentials", fact, advice)
        else:
            yield Finding("ok", "credentials", fact)
    # Keys for a store of another endpoint are not known to AWS.
    if isinstance(issued.credentials, AwsKeys):
        host = urlsplit(root.find_place(issued.region).base).hostname
        if f".{host}".endswith(_AWS_DOMAINS):
            yield _identity(issued.credentials, issued.region)


def _identity(keys: AwsKeys, region: str | None) -> Finding:
    """Asks AWS (STS) for the owner of keys, which needs no permission; takes a few seconds at most."""
    try:
        from botocore.config import Config
        from botocore.session import Session
    except ImportError:
        return Finding("optional", "identity", "no botocore to ask with", "pip install 'streamer-data[aws]'")
    config = Config(connect_timeout=_STS_SECONDS, read_timeout=_STS_SECONDS, retries={"total_max_attempts": 1})
    try:
        sts = Session().create_client(
            "sts",
            region_name=region or "us-east-1",
            aws_access_key_id=keys.key,
            aws_secret_access_key=keys.secret,
            aws_session_token=keys.token,
            config=config,
        )
        with closing(sts):
            return Finding("ok", "identity", str(sts.get_caller_identity()["Arn"]))
    except Exception as error:  # noqa: BLE001 - the edge: whatever boto raises is one line of the report
        return Finding("warning", "identity", f"STS does not say whose keys they are ({type(error).__name__})", _PAGE)


def _endpoint(root: StoreRoot) -> str:
    """Returns the url of a server of the store, which can be asked for its time."""
    if root.is_web:
        return root.url
    if root.family == "s3":
        return root.find_place(None).base
    config = root.settings.config
    if given := config.get("endpoint") or config.get("base_url"):
        return str(given)
    account = root.name.partition("@")[2] or f"{config.get('account_name')}.blob.core.windows.net"
    return "https://storage.googleapis.com" if root.family == "gs" else f"https://{account}"


def _clock(endpoint: str) -> Iterator[Finding]:
    """Yields a finding about the server: whether it speaks HTTP, and how far this machine's clock is from its clock.

    A store refuses requests that are signed with another time.
    """
    host = urlsplit(endpoint).netloc.rpartition("@")[2]
    try:
        with urlopen(Request(endpoint, method="HEAD"), timeout=_CLOCK_SECONDS) as answer:
            date = answer.headers["Date"]
    except HTTPError as refusal:  # also an answer, and it has the time
        date = refusal.headers["Date"]
        refusal.close()
    except (OSError, ValueError) as error:  # ValueError: the name of the host can be none, as a label of 64 letters
        reason = getattr(error, "reason", None) or error
        yield Finding("problem", "endpoint", f"{host}: {reason}", "check the endpoint, the proxy and the network")
        return
    except HTTPException as error:
        fact = f"{host} answers, but not as a web server does ({type(error).__name__}: {error})"
        yield Finding("problem", "endpoint", fact, "check the port, and whether the endpoint is http or https")
        return
    if (moment := _read_date(date)) is None:
        yield Finding("ok", "endpoint", f"{host} answers")
        return
    skew = (datetime.now(UTC) - moment).total_seconds()
    fact = (
        f"{host} answers; this machine's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the server's"
    )
    if abs(skew) > _SKEW_SECONDS:
        yield Finding(
            "problem", "endpoint", fact, "set the clock (chrony, systemd-timesyncd): signatures carry the time"
        )
    else:
        yield Finding("ok", "endpoint", fact)


def _read_date(date: str | None) -> datetime | None:
    """Returns the time in a header `Date`; None if there is no such header, or it has no time with a zone."""
    try:
        moment = parsedate_to_datetime(date or "")
    except (ValueError, OverflowError):
        return None
    return moment if moment.tzinfo else None


async def _objects(store: ObjectStore, url: str) -> list[Finding]:
    """Returns findings about the first page of the listing, and about the first byte of its largest object.

    Raises:
        StreamerError, OSError: the url cannot be listed, or its largest object not be read.
    """
    started = time.monotonic()
    page: Sequence[ObjectRecord]
    async with aclosing(store.list(url)) as pages:
        page = await anext(pages, [])
    listed = time.monotonic() - started
    if not page:
        return [Finding("problem", "url", f"{shown(url)}: nothing is there", "check the prefix")]
    record = max(page, key=lambda record: record.size)
    fact = f"{shown(url)}: {len(page):,} objects in the first page, listed in {listed:.2f} s"
    found = [Finding("ok", "url", fact)]
    if record.size:
        started = time.monotonic()
        await store.get(Get(record, 0, 1), lambda piece: None)
        read = time.monotonic() - started
        name = shown(record.url)
        found.append(Finding("ok", "read", f"{name} ({format_bytes(record.size)}): first byte after {read:.3f} s"))
    return found


async def link_findings(root: StoreRoot, url: str, seconds: float = SECONDS) -> list[Finding]:
    """Measures the link to the objects below a url, for `seconds` with one connection and as long with many.

    Errors of the store become a finding; there is none if the url has nothing to read.
    """
    try:
        store = open_root(root)
        try:
            return list(assess_link(await measure_link(store, await find_objects(store, url), seconds)))
        finally:
            await store.aclose()
    except ConfigError:
        return []  # `url_findings` has said already that there is nothing to read.
    except (StreamerError, OSError) as error:
        return [Finding("warning", "link", str(error), "docs/trouble.md")]


def assess_link(test: QuickTest) -> Iterator[Finding]:
    """Yields a finding with the rates of a link, a warning if requests failed or nothing arrived."""
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
