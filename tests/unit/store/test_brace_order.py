"""The order of objects whose url has braces."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamer.formats.detect import chooser
from streamer.indexing.listed_rows import list_objects
from streamer.store.addresses.patterns import brace_order
from streamer.store.local_store import LocalStore


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("b{8..11}.tar", ["b8.tar", "b9.tar", "b10.tar", "b11.tar"]),
        ("b{08..11}.tar", ["b08.tar", "b09.tar", "b10.tar", "b11.tar"]),
        ("b{9,10,8}.tar", ["b9.tar", "b10.tar", "b8.tar"]),
        ("{b,a}{2,10}.tar", ["b2.tar", "b10.tar", "a2.tar", "a10.tar"]),
        ("{b,a}/*.tar", ["b/1.tar", "b/10.tar", "b/2.tar", "a/3.tar"]),
        ("x{10,9}/**/*.tar", ["x10/a/1.tar", "x9/a/1.tar", "x9/b.tar"]),
        ("*.tar", ["b10.tar", "b8.tar", "b9.tar"]),
    ],
)
@pytest.mark.parametrize("scheme", ["", "file://"])
async def test_braces_keep_the_order_in_which_they_are_written(
    tmp_path: Path, pattern: str, wanted: list[str], scheme: str
) -> None:
    """Objects come in the order in which the braces are written, and within one pattern in order of name."""
    for key in wanted:
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(b"")
    found = await list_objects([f"{scheme}{tmp_path}/{pattern}"], LocalStore(), chooser("auto"), 4, brace_order)
    assert [found.listing.url(number).decode().removeprefix(f"{tmp_path}/") for number in range(len(wanted))] == wanted


def test_urls_of_other_stores() -> None:
    """The order of braces is found from the urls of a store; a url without braces has no order of its own."""
    place_of = brace_order("s3://b/{y,x}/{2..10}.tar")
    assert place_of is not None
    assert [place_of(f"s3://b/{key}.tar") for key in ("y/2", "y/10", "x/2", "z/1")] == [0, 8, 9, 18]
    assert brace_order("s3://b/x/") is None
