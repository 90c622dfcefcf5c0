"""Storage options of any name and value: stores use them or refuse them by an error of streamer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from streamer.errors import StreamerError
from streamer.store import open_store
from streamer.store.options import _TABLES
from streamer.store.root import StoreRoot

URLS = {
    "s3": ["s3://bucket/a"],
    "gs": ["gs://bucket/a"],
    "az": ["az://container/a", "abfs://c@account.dfs.core.windows.net/a"],
    "http": ["https://host.example/a", "http://[2001:db8::1]:80/a"],
}
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(
        ["", "x", "http://[x", "http://h:99999/", "https://h/?a#b", "é", "a\nb", "service_account", "anon"]
    ),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.sampled_from(["type", "Host", "s3", "a"]), inside),
    max_leaves=4,
)


def _options_of(table: Mapping[str, object]) -> st.SearchStrategy[dict[str, object]]:
    """Draws options of a table, with values of any kind."""
    values = {
        name: st.one_of(_options_of(rule), VALUES) if isinstance(rule, Mapping) else VALUES
        for name, rule in table.items()
    }
    return st.lists(st.sampled_from(sorted(values)), max_size=3, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: values[name] for name in names})
    )


@st.composite
def asked(draw: st.DrawFn) -> tuple[str, dict[str, object]]:
    """Draws a url and options of its kind."""
    kind = draw(st.sampled_from(sorted(URLS)))
    return draw(st.sampled_from(URLS[kind])), draw(_options_of(_TABLES[kind]))


def _use(url: str, options: dict[str, object], *, guarded: bool) -> None:
    """Resolves and opens a store, and prepares it where that looks for no credentials."""
    StoreRoot.resolve(url, options, {}).describe_chosen_endpoint({})
    store = open_store(url, options, refuse_local=guarded)

    async def prepare() -> None:
        await store.prepare()
        await store.aclose()

    # Of the others credentials would be looked for.
    if url.startswith("http") or {"key", "secret"} <= set(options):
        asyncio.run(prepare())


KEYS = {"key": "k", "secret": "s"}


@given(asked(), st.booleans())
@example(("s3://bucket/a", {**KEYS, "config_kwargs": {"connect_timeout": "soon"}}), True)
@example(("s3://bucket/a", {**KEYS, "endpoint_url": "http://[x"}), True)
@example(("s3://bucket/a", {**KEYS, "endpoint_url": {"a": 1}}), False)
@example(("s3://bucket/a", {**KEYS, "client_kwargs": 5}), False)
@example(("gs://bucket/a", {"token": {"type": "service_account", "private_key": [1]}}), False)
@example(("az://container/a", {"connection_string": 5}), False)
@example(("https://host.example/a", {"headers": [1]}), True)
@example(("https://host.example/a", {"headers": {"a\nb": "c"}}), True)
@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=25)
def test_values_of_any_kind(drawn: tuple[str, dict[str, object]], guarded: bool) -> None:
    """A storage option of any value is used or refused by an error of streamer, and by no error of a library."""
    url, options = drawn
    if url.startswith("s3") and guarded:
        options = {**KEYS, **options}
    with suppress(StreamerError):
        _use(url, options, guarded=guarded)
